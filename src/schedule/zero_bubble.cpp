#include <algorithm>
#include <array>

#include "schedule/compute_order.h"

namespace tessera::schedule {
namespace {

using Kind = PipelineOperation::Kind;

/// Appends operations of a rank; each kind takes a stage's micro-batches in order.
class NextInTurn {
 public:
  NextInTurn(std::array<int, 2> stages, int num_micro_batches)
      : stages_(stages), num_micro_batches_(num_micro_batches) {}

  void forward(int chunk = 0) { append(Kind::kForward, chunk, forwards_); }
  void input(int chunk = 0) { append(Kind::kBackwardInput, chunk, inputs_); }
  void weight(int chunk = 0) { append(Kind::kBackwardWeight, chunk, weights_); }
  void both_backwards(int chunk) {
    input(chunk);
    weight(chunk);
  }
  /// The weights' gradients that are still owed.
  void remaining_weights(int chunk = 0) {
    while (weights_.at(chunk) < inputs_.at(chunk)) weight(chunk);
  }

  int num_forwards(int chunk = 0) const { return forwards_.at(chunk); }
  ComputeOrder take() { return std::move(order_); }

 private:
  using Counts = std::array<int, 2>;

  void append(Kind kind, int chunk, Counts& next) {
    const int micro_batch = next.at(chunk)++;
    // See Note [Micro-batches that are left out].
    if (micro_batch < num_micro_batches_) order_.push_back({kind, micro_batch, stages_.at(chunk)});
  }

  std::array<int, 2> stages_;
  int num_micro_batches_;
  Counts forwards_{};
  Counts inputs_{};
  Counts weights_{};
  ComputeOrder order_;
};

}  // namespace

// As 1f1b with one more forward ahead. Rank r owes the weights' gradients of r micro-batches: together with its p - r
// forwards ahead this makes p activations, what the first rank of 1f1b holds, on every rank. The owed ones are computed
// at the end, when the rank would wait for the last gradients to come back.
ComputeOrder zero_bubble_h1_order(const Shape& shape, int rank) {
  const int m = shape.num_micro_batches;
  NextInTurn next({rank, rank}, m);
  for (int i = 0; i < std::min(shape.num_ranks - rank, m); ++i) next.forward();
  for (int i = 0; i < m; ++i) {
    next.input();
    if (i >= rank) next.weight();
    if (next.num_forwards() < m) next.forward();
  }
  next.remaining_weights();
  return next.take();
}

// Chunk 0 is passed on the way to the last rank, chunk 1 on the way back, so the first rank has the loss and begins
// with backwards soonest. Every rank fills the time until then with forwards: 2p activations of half a rank's layers.
// Then each micro-batch that leaves makes room for one that comes. At the end rank r computes r inputs' gradients of
// both chunks without those of the weights, which ranks that come later in the V wait for, and fills the rest with the
// weights'.
ComputeOrder zero_bubble_v_order(const Shape& shape, int rank) {
  const int p = shape.num_ranks;
  const int fitting = std::max(shape.num_micro_batches, 2 * p - 1);
  NextInTurn next({shape.v_stage(rank, 0), shape.v_stage(rank, 1)}, shape.num_micro_batches);
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) next.forward(0);
  for (int i = 0; i < rank; ++i) {
    next.forward(1);
    next.forward(0);
  }
  for (int i = 0; i < p - rank; ++i) {
    next.forward(1);
    next.both_backwards(1);
  }
  while (next.num_forwards(1) < fitting) {
    if (next.num_forwards(0) < fitting) next.forward(0);
    next.both_backwards(0);
    next.forward(1);
    next.both_backwards(1);
  }
  for (int i = 0; i < rank; ++i) {
    next.input(0);
    next.input(1);
  }
  for (int i = 0; i < p - rank; ++i) next.both_backwards(0);
  next.remaining_weights(1);
  next.remaining_weights(0);
  return next.take();
}

}  // namespace tessera::schedule
