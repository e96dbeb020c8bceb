#include <tessera/core/error.h>
#include <tessera/data_parallel/data_parallel.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "data_parallel/replicas/mirror.h"
#include "data_parallel/replicas/replica_node.h"
#include "data_parallel/replicas/replica_threads.h"

namespace tessera::data_parallel {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<at::Device> devices_of(const DataParallelOptions& options) {
  const std::int64_t asked = options.num_replicas();
  if (asked < 0) throw ConfigError("num_replicas must not be negative, found " + std::to_string(asked));
  if (options.threads_per_replica() < 1) {
    throw ConfigError("threads_per_replica must be at least 1, found " + std::to_string(options.threads_per_replica()));
  }
  std::vector<at::Device> devices = options.devices();
  const bool found = devices.empty();
  const at::DeviceIndex num_found = found ? torch::cuda::device_count() : at::DeviceIndex{0};
  for (at::DeviceIndex i = 0; i < num_found; ++i) devices.emplace_back(at::kCUDA, i);
  if (devices.empty()) return std::vector<at::Device>(static_cast<std::size_t>(asked > 0 ? asked : 2), at::kCPU);
  const auto num_devices = static_cast<std::int64_t>(devices.size());
  if (asked > num_devices || (!found && asked != 0 && asked != num_devices)) {
    throw ConfigError("there are " + std::to_string(num_devices) + " devices for " + std::to_string(asked) +
                      " replicas; give as many devices as replicas, or leave num_replicas 0");
  }
  if (asked > 0) devices.resize(static_cast<std::size_t>(asked), devices.front());
  for (const at::Device& device : devices) {
    if (device.type() == devices.front().type()) continue;
    throw ConfigError("replicas need devices of one kind, found " + devices.front().str() + " and " + device.str());
  }
  return devices;
}

// Input i of replica r: result[r][i]. As many replicas as have something to do, at least one.
std::vector<Tensors> scatter(const Tensors& inputs, const std::vector<at::Device>& devices, std::int64_t dim) {
  const std::int64_t length = inputs.front().size(dim);
  for (const at::Tensor& input : inputs) {
    if (input.size(dim) == length) continue;
    throw ConfigError("all inputs are cut along dimension " + std::to_string(dim) + " and need the same size there, " +
                      "found " + std::to_string(length) + " and " + std::to_string(input.size(dim)));
  }
  const auto num_used = std::clamp<std::int64_t>(length, 1, static_cast<std::int64_t>(devices.size()));
  std::vector<Tensors> pieces(static_cast<std::size_t>(num_used));
  for (const at::Tensor& input : inputs) {
    const bool requires_grad = at::GradMode::is_enabled() && input.requires_grad();
    const Tensors cut = input.detach().tensor_split(num_used, dim);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].push_back(cut[i].to(devices[i]).requires_grad_(requires_grad));
    }
  }
  return pieces;
}

void average_into(const torch::nn::Module& model, const std::vector<std::shared_ptr<torch::nn::Module>>& others) {
  const at::NoGradGuard no_grad;
  const Tensors originals = model.parameters();
  std::vector<Tensors> theirs;
  for (const auto& other : others) theirs.push_back(other->parameters());
  std::unordered_set<const void*> seen;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    if (!seen.insert(originals[i].unsafeGetTensorImpl()).second) continue;
    at::Tensor sum = originals[i].detach().clone();
    bool differ = false;
    for (const Tensors& of_other : theirs) {
      const at::Tensor value = of_other[i].detach().to(sum.device());
      differ = differ || !at::equal(value, originals[i]);
      sum.add_(value);
    }
    // What is equal stays as it is, to the bit.
    if (differ) at::Tensor(originals[i]).copy_(sum.div_(static_cast<double>(theirs.size() + 1)));
  }
}

}  // namespace

struct Replicas::State {
  State(std::shared_ptr<torch::nn::Module> original, const DataParallelOptions& options)
      : dim(options.dim()), threads_per_replica(static_cast<int>(options.threads_per_replica())) {
    if (!original) throw ConfigError("DataParallel needs a model, found an empty pointer");
    const auto devices = devices_of(options);
    for (const auto& item : original->named_parameters()) {
      if (item.value().device() == devices.front() || (item.value().is_cpu() && devices.front().is_cpu())) continue;
      throw ConfigError("the model must lie on the first device, " + devices.front().str() + ", but its parameter \"" +
                        item.key() + "\" lies on " + item.value().device().str() + "; move it there with to()");
    }
    for (const at::Tensor& parameter : original->parameters()) {
      if (places.emplace(parameter.unsafeGetTensorImpl(), parameters.size()).second) parameters.push_back(parameter);
    }
    modules.push_back(original);
    for (std::size_t i = 1; i < devices.size(); ++i) {
      modules.push_back(clone_of(*original, devices[i]));
      mirrors.emplace_back(original, modules.back());
      mirrors.back().refresh();
    }
    threads = std::make_shared<ReplicaThreads>(devices, options.threads_per_replica());
  }

  std::vector<ReplicaPass> passes_of(std::vector<Tensors> pieces) const;

  std::int64_t dim;
  int threads_per_replica;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  Tensors parameters;                                   // of the model, each once
  std::unordered_map<const void*, std::size_t> places;  // of each among them
  std::vector<Mirror> mirrors;                          // of replica 1 and on
  std::shared_ptr<ReplicaThreads> threads;
};

Replicas::Replicas(const std::shared_ptr<torch::nn::Module>& model, const DataParallelOptions& options)
    : state_(std::make_shared<State>(model, options)) {}

const std::vector<std::shared_ptr<torch::nn::Module>>& Replicas::modules() const { return state_->modules; }
const std::vector<at::Device>& Replicas::devices() const { return state_->threads->devices(); }

std::vector<ReplicaPass> Replicas::State::passes_of(std::vector<Tensors> pieces) const {
  std::vector<ReplicaPass> passes(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) passes[i].inputs = std::move(pieces[i]);
  for (std::size_t place = 0; place < parameters.size(); ++place) {
    passes[0].parameters.push_back({parameters[place], place});
  }
  for (std::size_t i = 1; i < passes.size(); ++i) {
    for (const Mirror::Pair& pair : mirrors[i - 1].parameters()) {
      passes[i].parameters.push_back({pair.clone, places.at(pair.original.unsafeGetTensorImpl())});
    }
  }
  return passes;
}

at::Tensor Replicas::forward(const Tensors& inputs, const Forward& forward_one) const {
  State& state = *state_;
  for (Mirror& mirror : state.mirrors) mirror.refresh();
  auto passes = state.passes_of(scatter(inputs, state.threads->devices(), state.dim));
  state.threads->run(passes.size(), "forward",
                     [&](std::size_t i) { passes[i].output = forward_one(i, passes[i].inputs); });
  Tensors outputs;
  bool requires_grad = false;
  for (const ReplicaPass& pass : passes) {
    outputs.push_back(pass.output.detach().to(state.threads->devices().front()));
    requires_grad = requires_grad || pass.output.requires_grad();
  }
  at::Tensor output = at::cat(outputs, state.dim);
  if (!requires_grad) return output;
  auto edges = torch::autograd::collect_next_edges(state.parameters, inputs);
  auto node = c10::make_intrusive<ReplicaNode>(state.threads, std::move(passes), state.dim);
  node->set_next_edges(std::move(edges));
  torch::autograd::create_gradient_edge(output, node);
  return output;
}

void Replicas::train(const Train& body) const {
  const auto& devices = state_->threads->devices();
  const torch::nn::Module& model = *state_->modules.front();
  std::vector<std::shared_ptr<torch::nn::Module>> own;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    own.push_back(clone_of(model, devices[i]));
    own.back()->train(model.is_training());
  }
  const int callers = at::get_num_threads();
  const auto train_one = [&](World world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    if (devices[rank].is_cpu()) set_intra_op_threads(state_->threads_per_replica);
    const c10::OptionalDeviceGuard device(devices[rank]);
    body(rank == 0 ? *state_->modules.front() : *own[rank - 1], std::move(world));
  };
  try {
    run_threads(static_cast<int>(devices.size()), train_one);
  } catch (...) {
    at::set_num_threads(callers);
    throw;
  }
  at::set_num_threads(callers);
  average_into(model, own);
}

}  // namespace tessera::data_parallel
