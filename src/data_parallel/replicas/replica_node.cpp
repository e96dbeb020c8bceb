#include "data_parallel/replicas/replica_node.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tessera::data_parallel {
namespace {

// Each gradient to the thread that has the least to add so far.
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

// A gradient may be memory that others see, such as a part of the gradient that came in.
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
    : threads_(std::move(threads)), passes_(std::move(passes)), dim_(dim) {}

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
  const auto found = run_backwards(gradients[0]);
  auto results = sum_over_replicas(found);
  for (std::size_t i = 0; i < passes_[0].inputs.size(); ++i) results.push_back(join_over_replicas(found, i));
  return results;
}

std::vector<ReplicaNode::Tensors> ReplicaNode::run_backwards(const at::Tensor& gradient) {
  std::vector<std::int64_t> sizes;
  for (const ReplicaPass& pass : passes_) sizes.push_back(pass.output.size(dim_));
  const auto pieces = gradient.split_with_sizes(sizes, dim_);
  // Asked here: the answer is kept by the thread that runs this node.
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
  // Replica 0's parameters are the caller's: their hooks are for the sum over the replicas, which autograd shows them
  // when this node has returned it.
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

}  // namespace tessera::data_parallel
