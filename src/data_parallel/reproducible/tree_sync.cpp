#include "data_parallel/reproducible/tree_sync.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "data_parallel/plain_alias.h"

namespace tessera::data_parallel {

TreeSync::TreeSync(const NamedTensors& parameters, const Communicator& comm, const DdpSettings& settings)
    : comm_(comm.with_strategy(CommunicationStrategy::kTree)), settings_(settings) {
  for (const at::Tensor& parameter : parameters.tensors) {
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& one) {
      return one.parameters.front().options().type_equal(parameter.options());
    });
    if (kind == kinds_.end()) {
      kinds_.push_back({{}, 0, GradientTree(settings_.micro_batches_per_rank)});
      kind = std::prev(kinds_.end());
    }
    kind->parameters.push_back(parameter);
    kind->num_elements += parameter.numel();
  }
  // Note [Kernels in reproducible mode]
  // Some kernels cut their sums by the number of threads (the gradient of LayerNorm's weight, for one), so that number
  // is part of the result: it is set here and checked in every step. Kernels whose result may differ from call to call
  // are refused by LibTorch, by name. Filling fresh memory would only help those who read it before they write it.
  at::set_num_threads(settings_.num_threads);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void TreeSync::before_forward() {
  if (at::get_num_threads() != settings_.num_threads) {
    throw ConfigError("reproducible mode was set up for " + std::to_string(settings_.num_threads) +
                      " threads a rank, and now there are " + std::to_string(at::get_num_threads()) + " (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): results would differ. Set DdpOptions::num_threads instead");
  }
  // A gradient that is there already would be the first to be added, on every rank: another tree for each number.
  for (const Kind& kind : kinds_) {
    for (const at::Tensor& parameter : kind.parameters) drop_zeros(parameter);
  }
}

void TreeSync::drop_zeros(const at::Tensor& parameter) const {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0) {
    throw ConfigError("reproducible mode needs the gradients cleared before a forward (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): call zero_grad() after the optimizer's step, and look at parameters under NoGradGuard");
  }
  gradient = at::Tensor();
}

void TreeSync::backward_starts(const std::vector<bool>& /*used*/, bool /*is_first*/) {}

at::Tensor TreeSync::flat_gradients_of(const Kind& kind) const {
  const at::Tensor flat = comm_.empty({kind.num_elements}, kind.parameters.front().options().requires_grad(false));
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : kind.parameters) {
    const at::Tensor place = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    if (parameter.grad().defined()) {
      place.copy_(parameter.grad());
    } else {
      place.zero_();
    }
    begin += parameter.numel();
  }
  return flat;
}

void TreeSync::backward_ends() {
  const at::NoGradGuard no_grad;
  for (Kind& kind : kinds_) {
    kind.tree.add(next_micro_batch_, flat_gradients_of(kind));
    for (const at::Tensor& parameter : kind.parameters) parameter.mutable_grad() = at::Tensor();
  }
  ++next_micro_batch_;
  if (kinds_.front().tree.is_complete()) finish_step();
}

void TreeSync::finish_step() {
  for (Kind& kind : kinds_) {
    const at::Tensor sum = kind.tree.take();
    comm_.all_reduce(sum);
    num_bytes_ += sum.nbytes();
    sum.mul_(1.0 / static_cast<double>(settings_.micro_batches));  // a power of two: exact
    std::int64_t begin = 0;
    for (const at::Tensor& parameter : kind.parameters) {
      parameter.mutable_grad() = plain_alias_of(sum.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
  next_micro_batch_ = 0;
}

void TreeSync::shadow_forward() { throw InternalError("reproducible mode has no join"); }

void TreeSync::shadow_backward() { throw InternalError("reproducible mode has no join"); }

void TreeSync::set_divisor(int /*divisor*/) { throw InternalError("reproducible mode has no join"); }

void TreeSync::set_bucket_bytes(std::int64_t /*bucket_bytes*/) {
  throw ConfigError("reproducible mode uses no buckets: their size cannot be set");
}

void TreeSync::set_micro_batch(std::int64_t index) {
  if (index < 0 || index >= settings_.micro_batches_per_rank) {
    throw ConfigError("expected a micro-batch of 0 to " + std::to_string(settings_.micro_batches_per_rank - 1) +
                      ", found " + std::to_string(index) + " (rank " + std::to_string(comm_.world_rank()) + ")");
  }
  next_micro_batch_ = index;
}

void TreeSync::add_to(DdpStatistics& statistics) const { statistics.num_gradient_bytes = num_bytes_; }

}  // namespace tessera::data_parallel
