#include "fsdp/tree_reduction.h"

#include <tessera/core/error.h>
#include <tessera/shard/plain_alias.h>
#include <tessera/shard/reproducible.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

namespace tessera::fsdp {
namespace {

// Kernels that update parameters round differently at the end of each thread's piece, and shards have other pieces.
constexpr int kNumThreads = 1;

// How many exchanges are under way at a time: each holds a unit's gradients twice.
constexpr std::size_t kMaxExchanges = 2;

/// Adds along the upper levels of the tree: pairs of neighbours, then pairs of these sums. Overwrites the parts.
at::Tensor sum_of_parts(const at::Tensor& parts, std::int64_t num_parts) {
  const at::Tensor partial = parts.view({num_parts, parts.numel() / num_parts});
  for (std::int64_t stride = 1; stride < num_parts; stride *= 2) {
    for (std::int64_t i = 0; i < num_parts; i += 2 * stride) partial[i].add_(partial[i + stride]);
  }
  return partial[0];
}

/// The sum over the ranks along the tree, in place: ranks that share shards are neighbours.
void all_reduce_along_tree(const UnitRanks& ranks, const at::Tensor& sum) {
  ranks.shards.with_strategy(CommunicationStrategy::kTree).all_reduce(sum);
  if (ranks.replicas) ranks.replicas->with_strategy(CommunicationStrategy::kTree).all_reduce(sum);
}

}  // namespace

TreeReduction::TreeReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated,
                             const UnitRanks& ranks, SamePath& path, std::int64_t micro_batches)
    : GradientReduction(units, replicated, ranks, path),
      micro_batches_(micro_batches),
      num_own_(micro_batches / ranks.num_ranks()) {
  for (std::size_t i = 0; i < units.size(); ++i) gradients_.push_back({GradientTree(num_own_), {}, {}});
  for (const at::Tensor& parameter : trained_replicated()) {
    whole_.try_emplace(parameter.scalar_type(), Whole{GradientTree(num_own_), {}})
        .first->second.parameters.push_back(parameter);
  }
  use_reproducible_kernels(kNumThreads);
}

void TreeReduction::before_forward() {
  const int rank = ranks().shards.world_rank();
  require_num_threads(kNumThreads, rank, "Leave at::set_num_threads() at 1");
  bool is_cleared = true;
  for (const auto& unit : units()) {
    for (const TensorSlice& slice : unit->trained_slices()) {
      is_cleared = drop_cleared_gradient(slice.values.mutable_grad()) && is_cleared;
    }
    unit->shard().mutable_grad() = at::Tensor();
  }
  for (const at::Tensor& parameter : trained_replicated()) {
    is_cleared = drop_cleared_gradient(parameter.mutable_grad()) && is_cleared;
  }
  // This rank's part may be zero where another rank's is not: all ranks refuse, or none.
  const at::Tensor left = at::full({1}, is_cleared ? 0 : 1, at::kInt);
  ranks().shards.all_reduce(left, ReduceOp::kMax);
  if (ranks().replicas) ranks().replicas->all_reduce(left, ReduceOp::kMax);
  if (left.item<int>() > 0) refuse_gradients_left(rank);
}

void TreeReduction::set_micro_batch(std::int64_t index) {
  if (index < 0 || index >= num_own_) {
    throw ConfigError("expected a micro-batch of 0 to " + std::to_string(num_own_ - 1) + ", found " +
                      std::to_string(index) + " (rank " + std::to_string(ranks().shards.world_rank()) + ")");
  }
  next_micro_batch_ = index;
}

// ---- a pass ---------------------------------------------------------------------------------------------------------

at::Tensor& TreeReduction::flat_of(std::size_t unit) {
  Gradients& gradients = gradients_[unit];
  if (!gradients.flat.defined()) {
    const Unit& whole = *units()[unit];
    gradients.flat =
        ranks().shards.empty({whole.layout().num_elements()}, whole.shard().options().requires_grad(false));
    // Zeros in the gaps, and for parameters that this pass does not reach.
    gradients.flat.zero_();
    gradients.came.assign(whole.parameters().size(), false);
  }
  return gradients.flat;
}

void TreeReduction::add(int unit, std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const auto u = static_cast<std::size_t>(unit);
  const auto& item = units()[u]->layout().items()[index];
  if (gradients_[u].contributed) {
    throw ConfigError("reproducible mode needs all gradients of a backward pass in one part, and " + item.name +
                      " got another one after its unit was complete (rank " +
                      std::to_string(ranks().shards.world_rank()) +
                      "). To recompute activations use tessera::recompute()");
  }
  at::Tensor place = flat_of(u).narrow(0, item.range.start, item.range.size).view(gradient.sizes());
  if (gradients_[u].came[index]) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
  gradients_[u].came[index] = true;
}

void TreeReduction::complete(int unit) { contribute(static_cast<std::size_t>(unit)); }

void TreeReduction::contribute(std::size_t unit) {
  const at::NoGradGuard no_grad;
  Gradients& gradients = gradients_[unit];
  gradients.tree.add(next_micro_batch_, std::exchange(flat_of(unit), at::Tensor()));
  gradients.contributed = true;
  if (!gradients.tree.is_complete()) return;
  while (exchanges_.size() >= kMaxExchanges) finish_oldest();
  Exchange exchange{unit, gradients.tree.take(), {}};
  const Partition& partition = units()[unit]->partition();
  if (partition.num_parts() > 1) {
    const Communicator& shards = ranks().shards;
    const Communicator::Sizes arriving(static_cast<std::size_t>(shards.size()), partition.of(shards.rank()).size);
    exchange.parts = shards.all_to_all_async(exchange.sums, 0, partition.sizes(), arriving);
    count_reduce_scatter();
  }
  exchanges_.push_back(std::move(exchange));
}

void TreeReduction::finish_oldest() {
  const at::NoGradGuard no_grad;
  Exchange exchange = std::move(exchanges_.front());
  exchanges_.pop_front();
  Unit& unit = *units()[exchange.unit];
  const int num_parts = unit.partition().num_parts();
  const at::Tensor sum = num_parts > 1 ? sum_of_parts(exchange.parts.result(), num_parts) : exchange.sums;
  if (ranks().replicas) ranks().replicas->with_strategy(CommunicationStrategy::kTree).all_reduce(sum);
  // Exact, since it is a power of two. In new memory, so that the memory of all parts is freed.
  unit.give_gradient(sum.mul(1.0 / static_cast<double>(micro_batches_)));
}

// ---- the end of a pass ----------------------------------------------------------------------------------------------

void TreeReduction::finish() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    // A unit that this rank's pass did not reach counts as zeros, as in data parallelism.
    if (units()[i]->is_trained() && !gradients_[i].contributed) contribute(i);
    gradients_[i].contributed = false;
  }
  wait();
  finish_whole();
  require_same_path();
  ++next_micro_batch_;
  if (++num_done_ < num_own_) return;
  num_done_ = 0;
  next_micro_batch_ = 0;
  mark_gradients();
}

void TreeReduction::wait() {
  while (!exchanges_.empty()) finish_oldest();
}

void TreeReduction::abandon() {
  GradientReduction::abandon();
  for (Exchange& exchange : exchanges_) {
    if (units()[exchange.unit]->partition().num_parts() > 1) exchange.parts.wait();
  }
  exchanges_.clear();
  for (Gradients& gradients : gradients_) gradients = {GradientTree(num_own_), {}, {}};
  for (auto& [dtype, whole] : whole_) whole.tree = GradientTree(num_own_);
  num_done_ = 0;
  next_micro_batch_ = 0;
}

void TreeReduction::finish_whole() {
  const at::NoGradGuard no_grad;
  for (auto& [dtype, whole] : whole_) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& parameter : whole.parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      flat.push_back(gradient.defined() ? gradient.reshape({-1}) : at::zeros({parameter.numel()}, parameter.options()));
      gradient = at::Tensor();
    }
    whole.tree.add(next_micro_batch_, at::cat(flat));
    if (!whole.tree.is_complete()) continue;
    const at::Tensor sum = whole.tree.take();
    all_reduce_along_tree(ranks(), sum);
    hand_out(whole, sum.mul_(1.0 / static_cast<double>(micro_batches_)));
  }
}

void TreeReduction::hand_out(const Whole& whole, const at::Tensor& average) const {
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : whole.parameters) {
    const at::Tensor view = average.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    parameter.mutable_grad() = plain_alias_of(view);
    begin += parameter.numel();
  }
}

}  // namespace tessera::fsdp
