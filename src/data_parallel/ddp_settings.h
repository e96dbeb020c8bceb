#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>

namespace tessera::data_parallel {

/// DdpOptions that were checked against each other and against the group.
struct DdpSettings {
  std::int64_t bucket_bytes;
  std::int64_t first_bucket_bytes;
  bool find_unused_parameters;
  bool gradient_as_bucket_view;
  bool static_graph;
  bool delay_all_reduce;
  bool broadcast_buffers;
  bool init_sync;
  std::shared_ptr<GradientHook> hook;  ///< never null
  bool reproducible;
  std::int64_t micro_batches_per_rank;
  std::int64_t micro_batches;
  int num_threads;
};

/// Throws ConfigError with all faults at once.
DdpSettings resolve(const DdpOptions& options, const Communicator& comm);

/// Of parameters that were frozen or unfrozen inside join(), or else between the micro-batches of a step.
ConfigError refusal_of_flags_changed_within(bool join, int world_rank);

}  // namespace tessera::data_parallel
