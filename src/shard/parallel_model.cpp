#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/named_tensors.h>
#include <tessera/shard/parallel_model.h>

#include <torch/nn/module.h>

#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera::shard {
namespace {

/// The shared models of this process, by module. Ranks that are threads have different modules and use the same table.
struct SharedModels {
  std::mutex mutex;
  /// The newest last: one may be made over another, as copies over cut layers are.
  std::unordered_map<const torch::nn::Module*, std::vector<std::weak_ptr<ModelState>>> states;

  static SharedModels& of_process() {
    static auto* const all = new SharedModels;  // never destroyed: models may outlive statics
    return *all;
  }
};

}  // namespace

void note_shared(const std::shared_ptr<ModelState>& state) {
  SharedModels& all = SharedModels::of_process();
  const std::lock_guard lock(all.mutex);
  for (auto& [module, states] : all.states) {
    std::erase_if(states, [](const auto& one) { return one.expired(); });
  }
  std::erase_if(all.states, [](const auto& entry) { return entry.second.empty(); });
  all.states[state->module().get()].push_back(state);
}

std::shared_ptr<ModelState> find_shared(const torch::nn::Module& module) {
  SharedModels& all = SharedModels::of_process();
  const std::lock_guard lock(all.mutex);
  const auto found = all.states.find(&module);
  if (found == all.states.end()) return nullptr;
  for (auto one = found->second.rbegin(); one != found->second.rend(); ++one) {
    if (auto state = one->lock()) return state;
  }
  return nullptr;
}

std::vector<TrainedTensor> whole_parameters(const torch::nn::Module& model, std::size_t num_axes) {
  std::vector<std::size_t> all_axes(num_axes);
  std::iota(all_axes.begin(), all_axes.end(), 0);
  std::vector<TrainedTensor> found;
  const NamedTensors parameters = parameters_of(model);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& tensor = parameters.tensors[i];
    const std::string& name = parameters.names[i];
    found.push_back({name,
                     tensor,
                     {{name, global_slice(tensor), {0, c10::multiply_integers(intercept::held_sizes(tensor))}}},
                     all_axes});
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
  const at::Tensor held = intercept::held_part(tensor);
  return {{name, global_slice(tensor), held.is_contiguous() ? held.view({-1}) : held}, is_buffer};
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

namespace tessera {
namespace {

/// A module that one rank has alone.
class PlainModel : public shard::ModelState {
 public:
  explicit PlainModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  const std::shared_ptr<torch::nn::Module>& module() const override { return module_; }
  std::vector<ModelAxis> axes() const override {
    shard::require_uncut(*module_, "a model in one process");
    return {};
  }
  std::vector<TrainedTensor> trained() const override { return shard::whole_parameters(*module_, 0); }
  std::vector<StateSlice> state_slices() const override { return shard::whole_state(*module_); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

std::shared_ptr<shard::ModelState> state_of(const std::shared_ptr<torch::nn::Module>& model) {
  if (!model) throw ConfigError("there is no model: the pointer is null");
  if (auto shared = shard::find_shared(*model)) return shared;
  return std::make_shared<PlainModel>(model);
}

}  // namespace

NoSync::NoSync(const ParallelModel& model) : model_(model.model_state()) { model_->enter_no_sync(); }
NoSync::~NoSync() { model_->leave_no_sync(); }

PromisedGradients::PromisedGradients(const ParallelModel& model) : model_(model.model_state()) {
  model_->promise_gradients();
}
PromisedGradients::~PromisedGradients() {
  if (!finished_) model_->break_promise();
}

void PromisedGradients::complete(const std::vector<at::Tensor>& parameters) {
  if (finished_) throw ConfigError("complete() was called after finish(): the gradients are averages already");
  model_->complete_gradients(parameters);
}

void PromisedGradients::finish() {
  if (finished_) return;
  model_->finish_gradients();
  finished_ = true;
}

Whole::Whole(const ParallelModel& model, const GatherOptions& options)
    : model_(model.model_state()), options_(options) {
  model_->hold(options_);
}
Whole::~Whole() { model_->let_go(options_); }

ParallelModel::ParallelModel(const std::shared_ptr<torch::nn::Module>& model) : state_(state_of(model)) {}
ParallelModel::ParallelModel(std::shared_ptr<shard::ModelState> state) : state_(std::move(state)) {}

std::shared_ptr<shard::ModelState> ParallelModel::model_state() const {
  auto state = state_;
  while (auto outer = state->outer()) state = std::move(outer);
  return state;
}

std::vector<at::Tensor> ParallelModel::parameters() const {
  std::vector<at::Tensor> tensors;
  for (TrainedTensor& trained : model_state()->trained()) tensors.push_back(std::move(trained.tensor));
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> ParallelModel::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (TrainedTensor& trained : model_state()->trained()) {
    named.emplace_back(std::move(trained.name), std::move(trained.tensor));
  }
  return named;
}

std::int64_t count_parameters(const ParallelModel& model) {
  std::int64_t count = 0;
  for (const StateSlice& slice : model.state_slices()) {
    if (!slice.is_buffer) count += slice.slice.num_tensor_elements();
  }
  return count;
}

}  // namespace tessera
