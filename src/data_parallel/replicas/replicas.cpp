#include <tessera/core/error.h>
#include <tessera/data_parallel/data_parallel.h>
#include <tessera/shard/refuse_modules.h>
#include <tessera/shard/stream_order.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data_parallel/replicas/replica_node.h"
#include "data_parallel/replicas/replica_threads.h"

namespace tessera::data_parallel {
namespace {

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_alias_of(b);
}

void refresh_parameter(Mirror::Pair& pair) {
  if (pair.clone.requires_grad() != pair.original.requires_grad()) {
    pair.clone.requires_grad_(pair.original.requires_grad());
  }
  if (pair.clone.device() == pair.original.device()) {
    // The model may have got other memory since: by to(), or by a loaded state.
    if (!is_same_memory(pair.clone, pair.original)) pair.clone.set_data(pair.original.detach());
    return;
  }
  // Always: optimizers write through `data()`, which leaves the version counter as it was.
  pair.clone.variable_data().copy_(pair.original.detach(), /*non_blocking=*/true);
}

// Copies only if the values differ, and without changing the version counter: a graph whose backward is still to come
// may have saved a buffer, such as a table. Values are compared because BatchNorm changes its statistics without
// changing the version.
void refresh_buffer(const at::Tensor& original, const at::Tensor& clone) {
  const bool comparable =
      original.is_cpu() && clone.is_cpu() && original.sizes() == clone.sizes() && original.dtype() == clone.dtype();
  if (comparable && at::equal(original, clone)) return;
  clone.variable_data().copy_(original.detach(), /*non_blocking=*/true);
}

}  // namespace

Mirror::Mirror(std::shared_ptr<torch::nn::Module> original, std::shared_ptr<torch::nn::Module> clone)
    : original_modules_(original->modules()), clone_modules_(clone->modules()) {
  const auto clones = clone->named_parameters();
  std::map<const void*, const void*> original_of;
  for (const auto& item : original->named_parameters()) {
    const at::Tensor* of_clone = clones.find(item.key());
    if (of_clone == nullptr || of_clone->sizes() != item.value().sizes()) {
      throw ConfigError("the clone of the model has no parameter \"" + item.key() +
                        "\" of the same shape; register it in reset(), which clone() calls");
    }
    const void* const identity = item.value().unsafeGetTensorImpl();
    const auto [known, is_new] = original_of.emplace(of_clone->unsafeGetTensorImpl(), identity);
    if (is_new) {
      parameters_.push_back({item.value(), *of_clone});
    } else if (known->second != identity) {
      throw ConfigError("the parameter \"" + item.key() +
                        "\" is shared in the clone of the model but not in the model");
    }
  }
  const auto buffers = clone->named_buffers();
  for (const auto& item : original->named_buffers()) {
    const at::Tensor* of_clone = buffers.find(item.key());
    if (item.value().defined() && of_clone != nullptr) buffers_.emplace_back(item.value(), *of_clone);
  }
}

void Mirror::refresh() {
  const at::NoGradGuard no_grad;
  for (Pair& pair : parameters_) refresh_parameter(pair);
  for (const auto& [original, clone] : buffers_) refresh_buffer(original, clone);
  // A parent sets its children's mode too, and comes before them.
  for (std::size_t i = 0; i < original_modules_.size(); ++i) {
    const bool training = original_modules_[i]->is_training();
    if (clone_modules_[i]->is_training() != training) clone_modules_[i]->train(training);
  }
}

std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  try {
    auto clone = module.clone(device);
    generator.set_state(state);
    TORCH_CHECK(clone->modules().size() == module.modules().size(), "the clone has other submodules");
    return clone;
  } catch (const c10::Error& error) {
    generator.set_state(state);
    throw ConfigError("DataParallel needs a model that can be cloned, and " + module.name() +
                      " cannot: derive it and its submodules from torch::nn::Cloneable, and register parameters, "
                      "buffers and submodules in reset() instead of the constructor. LibTorch says: " +
                      error.what_without_backtrace());
  }
}

namespace {

// Assigns each gradient to the thread that has the least to add so far.
std::vector<std::vector<std::size_t>> shares_of(const std::vector<ReplicaPass::Leaf>& parameters,
                                                std::size_t num_threads) {
  std::vector<std::vector<std::size_t>> shares(num_threads);
  std::vector<std::int64_t> loads(num_threads, 0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto least = static_cast<std::size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    shares[least].push_back(i);
    loads[least] += parameters[i].tensor.numel();
  }
  return shares;
}

// A gradient may lie in memory that others see, such as a part of the incoming gradient.
bool is_seen_by_us_only(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.storage().use_count() == 1 && gradient.is_non_overlapping_and_dense();
}

at::Tensor sum_of(const std::vector<std::vector<at::Tensor>>& gradients, std::size_t index, at::Device device) {
  at::Tensor sum;
  bool is_ours = false;
  for (const auto& of_replica : gradients) {
    const at::Tensor& next = of_replica[index];
    if (!next.defined()) continue;
    if (!sum.defined()) {
      is_ours = is_seen_by_us_only(next) && next.device() == device;
      sum = next.to(device);
    } else if (is_ours) {
      sum.add_(next.to(device));
    } else {
      sum = sum + next.to(device);
      is_ours = true;
    }
  }
  return sum;
}

}  // namespace

ReplicaNode::ReplicaNode(std::shared_ptr<ReplicaThreads> threads, std::vector<ReplicaPass> passes, std::int64_t dim)
    : threads_(std::move(threads)),
      passes_(std::move(passes)),
      dim_(dim),
      streams_(current_streams(threads_->devices())) {}

void ReplicaNode::release_variables() {
  const std::lock_guard lock(mutex_);
  passes_.clear();
}

torch::autograd::variable_list ReplicaNode::apply(torch::autograd::variable_list&& gradients) {
  const std::lock_guard lock(mutex_);
  if (passes_.empty()) {
    throw ConfigError("backward through DataParallel a second time; pass retain_graph to the first backward");
  }
  if (at::GradMode::is_enabled()) {
    throw ConfigError("DataParallel does not compute gradients of gradients; leave create_graph false");
  }
  if (!gradients[0].defined()) return torch::autograd::variable_list(num_outputs());
  const c10::MultiStreamGuard on_streams(streams_);
  const auto found = run_backwards(gradients[0]);
  auto results = sum_over_replicas(found);
  for (std::size_t i = 0; i < passes_[0].inputs.size(); ++i) results.push_back(join_over_replicas(found, i));
  return results;
}

std::vector<ReplicaNode::Tensors> ReplicaNode::run_backwards(const at::Tensor& gradient) {
  std::vector<std::int64_t> sizes;
  for (const ReplicaPass& pass : passes_) sizes.push_back(pass.output.size(dim_));
  const auto pieces = gradient.split_with_sizes(sizes, dim_);
  // Asked here, because the answer is thread-local to the thread that runs this node.
  std::vector<bool> needed(num_outputs());
  for (std::size_t i = 0; i < needed.size(); ++i) needed[i] = task_should_compute_output(i);
  std::vector<Tensors> found(passes_.size());
  threads_->run(passes_.size(), "backward",
                [&](std::size_t replica) { found[replica] = run_backward(passes_[replica], pieces[replica], needed); });
  return found;
}

ReplicaNode::Tensors ReplicaNode::run_backward(const ReplicaPass& pass, const at::Tensor& gradient,
                                               const std::vector<bool>& needed) const {
  Tensors found(needed.size());
  Tensors asked;
  std::vector<std::size_t> places;
  const auto ask = [&](const at::Tensor& leaf, std::size_t place) {
    if (!leaf.requires_grad() || !needed[place]) return;
    asked.push_back(leaf);
    places.push_back(place);
  };
  for (const auto& leaf : pass.parameters) ask(leaf.tensor, leaf.place);
  for (std::size_t i = 0; i < pass.inputs.size(); ++i) ask(pass.inputs[i], needed.size() - pass.inputs.size() + i);
  if (asked.empty() || !pass.output.requires_grad()) return found;
  // Replica 0's parameters are the caller's. Their hooks are meant for the sum over the replicas; autograd calls them
  // with it after this node has returned.
  const intercept::HooksAside aside(asked);
  const auto answers = torch::autograd::grad({pass.output}, asked, {gradient.to(pass.output.device())}, keeps_graph_,
                                             /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < places.size(); ++i) {
    at::Tensor& place = found[places[i]];
    if (answers[i].defined()) place = place.defined() ? place + answers[i] : answers[i];
  }
  return found;
}

ReplicaNode::Tensors ReplicaNode::sum_over_replicas(const std::vector<Tensors>& gradients) {
  const auto& parameters = passes_[0].parameters;
  Tensors sums(parameters.size());
  const auto shares = shares_of(parameters, passes_.size());
  threads_->run(passes_.size(), "sum of gradients", [&](std::size_t replica) {
    for (const std::size_t i : shares[replica]) sums[i] = sum_of(gradients, i, parameters[i].tensor.device());
  });
  return sums;
}

at::Tensor ReplicaNode::join_over_replicas(const std::vector<Tensors>& gradients, std::size_t input) const {
  if (!passes_[0].inputs[input].requires_grad()) return {};
  const std::size_t place = passes_[0].parameters.size() + input;
  const at::Device device = passes_[0].inputs[input].device();
  Tensors pieces;
  for (std::size_t replica = 0; replica < passes_.size(); ++replica) {
    const at::Tensor& piece = gradients[replica][place];
    pieces.push_back((piece.defined() ? piece : at::zeros_like(passes_[replica].inputs[input])).to(device));
  }
  const bool any = std::any_of(gradients.begin(), gradients.end(), [&](const auto& of) { return of[place].defined(); });
  return any ? at::cat(pieces, dim_) : at::Tensor();
}

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
  const auto accelerator = at::accelerator::getAccelerator();
  const at::DeviceIndex num_found = found && accelerator ? at::accelerator::deviceCount() : at::DeviceIndex{0};
  for (at::DeviceIndex i = 0; i < num_found; ++i) devices.emplace_back(*accelerator, i);
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

// Input i of replica r: result[r][i]. Only for replicas that have something to do, at least one.
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
    // Equal parameters keep their exact bits.
    if (differ) at::Tensor(originals[i]).copy_(sum.div_(static_cast<double>(theirs.size() + 1)));
  }
}

}  // namespace

struct Replicas::State {
  State(std::shared_ptr<torch::nn::Module> original, const DataParallelOptions& options)
      : dim(options.dim()), threads_per_replica(static_cast<int>(options.threads_per_replica())) {
    if (!original) throw ConfigError("DataParallel needs a model, found an empty pointer");
    refuse_cut_models(*original);
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
  // The caller's: it has written the parameters there, and reads them there when all have returned.
  const std::vector<c10::Stream> streams = current_streams(devices);
  const auto train_one = [&](World world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    if (devices[rank].is_cpu()) set_intra_op_threads(state_->threads_per_replica);
    const c10::OptionalDeviceGuard device(devices[rank]);
    const c10::MultiStreamGuard on_streams(streams);
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
