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

/// What a training program does, as its operators tell.
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
  MemoryBytes at_end;            ///< what lived when it ended
  MemoryBytes peaks;             ///< the most of each kind
  std::int64_t peak_of_all = 0;  ///< the most of all kinds together
};

/// Counts a rank's memory by what it is used for, while it lives: LibTorch's tensors by an allocator around LibTorch's,
/// and what FSDP lends by itself. Sizes are as they are asked for.
///
/// Kinds are told apart by what happens, not by guesses. What counts as the optimizer's is what the rank's thread has
/// created since backward, when an operator writes a parameter in place: `step()` creates all that it needs before it
/// writes a parameter, and what is created after its last write (the next batch) is not counted there. What a program
/// creates between backward and step, and keeps, is. Before the first pass it is what `zeros_like` and its
/// kind make of parameters, for optimizers that begin with a state.
/// The model's buffers, and what was created before, are not counted.
/// While one lives, a tensor for which there is no memory throws StorageError that says what there is of each kind.
/// Requires: made by the thread that sharded the model, before the first backward; one for each thread. Costs a lock
/// and an entry in a table for each tensor.
/// Thread-safety: of the thread that made it.
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
  /// Since the start; more than the timeline holds when the first ones were dropped.
  std::uint64_t num_phases() const;
  /// The timeline as a table in MiB, a line for each phase.
  std::string text() const;

 private:
  std::shared_ptr<fsdp::MemoryRecorder> recorder_;
};

}  // namespace tessera
