#pragma once

#include <tessera/offload/offload_options.h>
#include <tessera/shard/flat_source.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// What a rank has moved and waited for since the model was sharded.
struct OffloadFigures {
  std::uint64_t bytes_read = 0;         ///< from files
  std::uint64_t bytes_written = 0;      ///< to files
  std::uint64_t num_repeated = 0;       ///< requests to a disk that failed, or read something else, and were made again
  double transfer_seconds = 0;          ///< in which at least one request was at a disk
  double parameter_wait_seconds = 0;    ///< in which the thread that trains waited for parameters
  double step_wait_seconds = 0;         ///< in which it waited within the optimizer's step
  std::uint64_t host_bytes = 0;         ///< of host memory, at this moment
  std::uint64_t peak_host_bytes = 0;    ///< the most so far
  std::uint64_t device_bytes = 0;       ///< of whole parameters, at this moment
  std::uint64_t peak_device_bytes = 0;  ///< the most so far
};

/// Keeps the parts of a sharded model, and what an optimizer remembers of them, in host memory or in files:
///
///   using tessera::Tier;
///   tessera::Offload offload(
///       tessera::OffloadOptions().parameters(Tier::kFile).states(Tier::kFile).folders({"/scratch"}));
///   auto sharded = tessera::fully_shard(model, world, tessera::FsdpOptions().flat_sources(offload.sources()));
///   tessera::optim::AdamW optimizer(sharded.parameters(), 3e-4);
///
/// The weights are those of a training in memory, bit for bit. One for each rank and model.
/// Thread-safety: used by the thread that trains.
class Offload {
 public:
  /// Throws ConfigError with every option that is out of range, and StorageError where a folder cannot be used.
  explicit Offload(const OffloadOptions& options);

  /// For FsdpOptions::flat_sources, of one model.
  MakeFlatSources sources() const;

  OffloadFigures figures() const;
  /// How much of each memory is used for what: a line for each budget.
  std::string text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera
