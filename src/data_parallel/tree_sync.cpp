#include "data_parallel/tree_sync.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <tessera/shard/plain_alias.h>
#include <tessera/shard/reproducible.h>

#include "data_parallel/flat_parameters.h"

namespace tessera::data_parallel {

TreeSync::TreeSync(const NamedTensors& parameters, const Communicator& comm, const DdpSettings& settings)
    : comm_(comm.with_strategy(CommunicationStrategy::kTree)), settings_(settings), layout_(parameters.tensors) {
  trees_.assign(layout_.num_buffers(), GradientTree(settings_.micro_batches_per_rank));
  use_reproducible_kernels(settings_.num_threads);
}

void TreeSync::before_forward() {
  require_num_threads(settings_.num_threads, comm_.world_rank(), "Set DdpOptions::num_threads instead");
  // An existing gradient would be added first on every rank, so the tree would depend on the number of ranks.
  for (const at::Tensor& parameter : layout_.parameters()) {
    if (!drop_cleared_gradient(parameter.mutable_grad())) refuse_gradients_left(comm_.world_rank());
  }
}

void TreeSync::backward_starts(const std::vector<bool>& /*used*/, bool /*is_first*/) {}

void TreeSync::gradient_came(std::size_t index, bool /*averages*/) {
  // Autograd adds to an existing gradient in place. If it is still the tensor that was handed out, it was not cleared.
  const at::Tensor& gradient = layout_.parameters()[index].grad();
  if (handed_out_.empty() || handed_out_[index].expired()) return;
  if (handed_out_[index]._unsafe_get_target() == gradient.unsafeGetTensorImpl())
    refuse_gradients_left(comm_.world_rank());
}

void TreeSync::backward_ends() {
  const at::NoGradGuard no_grad;
  const FlatBuffers gradients = layout_.make_buffers(comm_);
  layout_.read_gradients(gradients);
  for (std::size_t i = 0; i < trees_.size(); ++i) trees_[i].add(next_micro_batch_, gradients[i]);
  for (const at::Tensor& parameter : layout_.parameters()) parameter.mutable_grad() = at::Tensor();
  ++next_micro_batch_;
  if (trees_.front().is_complete()) finish_step();
}

void TreeSync::abandon() {
  trees_.assign(layout_.num_buffers(), GradientTree(settings_.micro_batches_per_rank));
  next_micro_batch_ = 0;
}

void TreeSync::finish_step() {
  FlatBuffers sums;
  for (GradientTree& tree : trees_) {
    const at::Tensor sum = sums.emplace_back(tree.take());
    comm_.all_reduce(as_real(sum));
    num_bytes_ += sum.nbytes();
    sum.mul_(1.0 / static_cast<double>(settings_.micro_batches));  // a power of two: exact
  }
  const auto& parameters = layout_.parameters();
  handed_out_.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = plain_alias_of(layout_.view_of(sums, i));
    handed_out_.emplace_back(parameters[i].grad().getIntrusivePtr());
  }
  next_micro_batch_ = 0;
}

void average_along_tree(const Communicator& comm, const std::vector<at::Tensor>& parameters, const std::string& hook) {
  if (hook != "none") {
    throw ConfigError("reproducible mode adds gradients along a tree of its own: it takes no hook and no compression" +
                      (" (found " + hook + ")"));
  }
  const at::NoGradGuard no_grad;
  const Communicator along_tree = comm.with_strategy(CommunicationStrategy::kTree);
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    at::Tensor sum = gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter.detach()).contiguous();
    along_tree.all_reduce(as_real(sum));
    gradient = plain_alias_of(sum.mul_(1.0 / comm.size()));  // a power of two: exact
  }
}

void TreeSync::shadow_backward() { throw InternalError("reproducible mode has no join"); }

void TreeSync::set_divisor(int /*divisor*/) { throw InternalError("reproducible mode has no join"); }

void TreeSync::set_bucket_bytes(std::int64_t /*bucket_bytes*/) {
  throw ConfigError("reproducible mode uses no buckets: their size cannot be set");
}

void TreeSync::set_buckets(const Buckets& /*buckets*/) {
  throw ConfigError("reproducible mode uses no buckets: they cannot be set");
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
