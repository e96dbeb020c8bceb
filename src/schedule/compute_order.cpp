#include "schedule/compute_order.h"

#include <algorithm>

namespace tessera::schedule {
namespace {

using Kind = PipelineOperation::Kind;

PipelineOperation forward(int micro_batch, int stage) { return {Kind::kForward, micro_batch, stage}; }
PipelineOperation backward(int micro_batch, int stage) { return {Kind::kBackward, micro_batch, stage}; }

/// The forwards and the backwards of a rank, each in their order: `num_ahead` forwards first, then one of each in turn,
/// then the backwards that remain.
ComputeOrder in_turn(const ComputeOrder& forwards, const ComputeOrder& backwards, int num_ahead) {
  const std::size_t ahead = std::min(static_cast<std::size_t>(num_ahead), forwards.size());
  ComputeOrder order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) order.push_back(forwards[ahead + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

}  // namespace

ComputeOrder sequential_order(const Shape& shape, int rank) {
  ComputeOrder order;
  for (int i = 0; i < shape.num_micro_batches; ++i) order.push_back(forward(i, rank));
  for (int i = shape.num_micro_batches; i-- > 0;) order.push_back(backward(i, rank));
  return order;
}

ComputeOrder round_robin_order(const Shape& shape, int rank) {
  ComputeOrder order;
  for (int i = 0; i < shape.num_micro_batches; ++i) {
    order.push_back(forward(i, rank));
    order.push_back(backward(i, rank));
  }
  return order;
}

ComputeOrder gpipe_order(const Shape& shape, int rank) {
  ComputeOrder order;
  for (int i = 0; i < shape.num_micro_batches; ++i) order.push_back(forward(i, rank));
  for (int i = 0; i < shape.num_micro_batches; ++i) order.push_back(backward(i, rank));
  return order;
}

ComputeOrder one_forward_one_backward_order(const Shape& shape, int rank) {
  ComputeOrder forwards;
  ComputeOrder backwards;
  for (int i = 0; i < shape.num_micro_batches; ++i) {
    forwards.push_back(forward(i, rank));
    backwards.push_back(backward(i, rank));
  }
  // The forwards that a rank can do while the first micro-batch goes to the last rank and comes back.
  return in_turn(forwards, backwards, shape.num_ranks - rank - 1);
}

// Note [Micro-batches that are left out]
// The patterns of the interleaved and the zb-v schedule need a number of micro-batches that fits: the one full groups
// of as many as there are ranks, the other at least 2p - 1 of them on p ranks. With another number, the order is made
// for the next number that fits, and the operations of the micro-batches that do not exist are left out. The result
// works because the fitting one does: operations of different micro-batches never need each other, so leaving out some
// of them only takes away reasons to wait.
ComputeOrder interleaved_order(const Shape& shape, int rank) {
  const int p = shape.num_ranks;
  const int v = shape.num_chunks;
  if (v == 1) return one_forward_one_backward_order(shape, rank);
  const int num_groups = (shape.num_micro_batches + p - 1) / p;
  ComputeOrder forwards;
  ComputeOrder backwards;
  for (int group = 0; group < num_groups; ++group) {
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int i = group * p; i < (group + 1) * p; ++i) {
        forwards.push_back(forward(i, shape.round_stage(rank, chunk)));
        backwards.push_back(backward(i, shape.round_stage(rank, v - 1 - chunk)));
      }
    }
  }
  // One group through all chunks but the last, and two for each rank behind: the forward and the backward pass there.
  ComputeOrder order = in_turn(forwards, backwards, (v - 1) * p + 2 * (p - 1 - rank));
  std::erase_if(order, [&](const auto& operation) { return operation.micro_batch >= shape.num_micro_batches; });
  return order;
}

}  // namespace tessera::schedule
