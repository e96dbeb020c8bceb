#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/recompute/save_memory.h>

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace tessera {

/// What a ParallelizedModel knows of its layout.
struct ParallelizedState {
  std::optional<Communicator> batches;  ///< the ranks with batches of their own; none: this rank alone
  std::optional<Communicator> layers;   ///< the ranks that share layers, and have the same batches; none: no others
  mutable int num_steps_to_check = 8;   ///< in which these are compared
  std::optional<Pipeline> pipeline;
  MemorySaving saving;
  int micro_batch_size = 0;
  bool uses_autocast = false;
  bool is_reproducible = false;        ///< micro-batches are added up along a tree, and divided by their number there
  std::int64_t num_micro_batches = 0;  ///< with that, over all ranks
  at::Device device{at::kCPU};         ///< of the model
  int world_rank = 0;
};

}  // namespace tessera
