#pragma once

#include <tessera/schedule/pipeline_schedule.h>

#include <vector>

namespace tessera::schedule {

/// A PipelineShape with its defaults filled in.
struct Shape {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int num_chunks = 1;

  /// Of the c-th stage of a rank, where the stages go round the ranks.
  int round_stage(int rank, int chunk) const { return chunk * num_ranks + rank; }
  /// Of the two stages of a rank, where the stages go to the last rank and back.
  int v_stage(int rank, int chunk) const { return chunk == 0 ? rank : 2 * num_ranks - 1 - rank; }
};

/// The computations of a rank in their order, without messages.
using ComputeOrder = std::vector<PipelineOperation>;

ComputeOrder sequential_order(const Shape& shape, int rank);
ComputeOrder round_robin_order(const Shape& shape, int rank);
ComputeOrder gpipe_order(const Shape& shape, int rank);
ComputeOrder one_forward_one_backward_order(const Shape& shape, int rank);
ComputeOrder interleaved_order(const Shape& shape, int rank);
ComputeOrder zero_bubble_h1_order(const Shape& shape, int rank);
ComputeOrder zero_bubble_v_order(const Shape& shape, int rank);

}  // namespace tessera::schedule
