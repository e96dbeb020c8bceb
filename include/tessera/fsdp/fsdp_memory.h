#pragma once

#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/thread_memory.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

namespace fsdp {
class MemoryRecorder;
}  // namespace fsdp

/// What a training program does at the moment, derived from the operators that it calls.
enum class TrainingPhase {
  kOther,       ///< before the first pass, and between backward and step
  kForward,     ///< from the first use of a sharded parameter
  kBackward,    ///< from the first use of a sharded parameter, or the first gradient, to the end of the pass
  kStep,        ///< from the optimizer's first use of a parameter to the next pass
  kEvaluation,  ///< a forward without gradients
};
const char* name_of(TrainingPhase phase);

/// The memory of one phase.
struct MemoryPhase {
  TrainingPhase phase = TrainingPhase::kOther;
  double start_seconds = 0;      ///< since the count began
  double seconds = 0;            ///< how long it took
  MemoryBytes at_end;            ///< live bytes when it ended
  MemoryBytes peaks;             ///< the most of each kind
  std::int64_t peak_of_all = 0;  ///< the most of all kinds together
};

/// Counts a rank's memory by its use, as long as the object lives. It counts LibTorch's tensors with an allocator that
/// wraps LibTorch's, and the buffers of FSDP where FSDP lends them. Sizes are the requested ones. Of a model on a
/// device it counts what the device's allocator tells LibTorch's profiler, in the sizes that it tells; so it throws
/// ConfigError while a profiler records on this thread, and no profiler starts while it lives.
///
/// The kinds are distinguished by events, not by guesses. When an operator writes a parameter in place, all tensors
/// that the rank's thread has created since backward count as the optimizer's: `step()` creates all that it needs
/// before it writes a parameter. Tensors created after its last write (the next batch) do not count as the optimizer's;
/// tensors that a program creates between backward and step, and keeps, do. Before the first pass, tensors that
/// `zeros_like` and similar operators make of parameters count as the optimizer's, since some optimizers begin with a
/// state. The model's buffers, and tensors created before this object, are not counted. While one lives, a failed
/// allocation throws a StorageError that lists the bytes of each kind. Requires: made by the thread that sharded the
/// model, before the first backward; one for each thread. Costs a lock and an entry in a table for each tensor.
/// Thread-safety: only the thread that made it may use it.
class FsdpMemory {
 public:
  /// Keeps the last `max_phases` phases.
  explicit FsdpMemory(const ShardedModel& sharded, std::size_t max_phases = 1000);
  ~FsdpMemory();
  FsdpMemory(const FsdpMemory&) = delete;
  FsdpMemory& operator=(const FsdpMemory&) = delete;

  MemoryBytes live() const;
  /// The most of each kind since the start, not all at one time.
  MemoryBytes peaks() const;
  /// The most of all kinds together since the start.
  std::int64_t peak_of_all() const;
  /// Oldest first; the last one is under way.
  std::vector<MemoryPhase> timeline() const;
  /// Since the start. Larger than the timeline once the oldest phases were dropped.
  std::uint64_t num_phases() const;
  /// The timeline as a table in MiB, a line for each phase.
  std::string text() const;

 private:
  std::shared_ptr<fsdp::MemoryRecorder> recorder_;
};

}  // namespace tessera
