#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/named_tensors.h>

#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace tessera::shard {
namespace {

/// By module. Ranks that are threads have modules of their own, and share this.
struct SharedModels {
  std::mutex mutex;
  std::unordered_map<const torch::nn::Module*, std::weak_ptr<ModelState>> states;

  static SharedModels& of_process() {
    static auto* const all = new SharedModels;  // never destroyed: models may outlive statics
    return *all;
  }
};

}  // namespace

void note_shared(const std::shared_ptr<ModelState>& state) {
  SharedModels& all = SharedModels::of_process();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.states, [](const auto& entry) { return entry.second.expired(); });
  all.states[state->module().get()] = state;
}

std::shared_ptr<ModelState> find_shared(const torch::nn::Module& module) {
  SharedModels& all = SharedModels::of_process();
  const std::lock_guard lock(all.mutex);
  const auto found = all.states.find(&module);
  return found == all.states.end() ? nullptr : found->second.lock();
}

std::vector<TrainedTensor> whole_parameters(const torch::nn::Module& model, std::size_t num_axes) {
  std::vector<std::size_t> all_axes(num_axes);
  std::iota(all_axes.begin(), all_axes.end(), 0);
  std::vector<TrainedTensor> found;
  const NamedTensors parameters = parameters_of(model);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& tensor = parameters.tensors[i];
    const std::string& name = parameters.names[i];
    found.push_back({name, tensor, {{name, global_slice(tensor), {0, tensor.numel()}}}, all_axes});
  }
  return found;
}

std::vector<StateSlice> whole_state(const torch::nn::Module& model) {
  std::unordered_set<const c10::TensorImpl*> buffers;
  for (const at::Tensor& buffer : buffers_of(model).tensors) buffers.insert(buffer.unsafeGetTensorImpl());
  std::vector<StateSlice> found;
  const NamedTensors state = state_of(model);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const bool is_buffer = buffers.contains(state.tensors[i].unsafeGetTensorImpl());
    found.push_back(whole_state(state.names[i], state.tensors[i], is_buffer));
  }
  return found;
}

StateSlice whole_state(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
  const at::Tensor values = tensor.is_contiguous() ? tensor.detach().view({-1}) : tensor.detach();
  return {{name, global_slice(tensor), values}, is_buffer};
}

void require_uncut(const torch::nn::Module& model, const std::string& what) {
  const NamedTensors parameters = parameters_of(model);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const Slice slice = global_slice(parameters.tensors[i]);
    if (slice.is_whole()) continue;
    throw ConfigError(what + " knows nothing of other ranks that have a part of it, and of " + parameters.names[i] +
                      " this one has " + slice.text());
  }
}

}  // namespace tessera::shard
