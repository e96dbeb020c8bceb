#pragma once

#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/mesh/ranks.h>
#include <tessera/observe/transfer_line.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// What became of a save; the same on every rank.
struct SaveReport {
  std::int64_t step = 0;
  bool saved = false;       ///< the step is on the disk, whole
  bool under_way = false;   ///< asynchronous: wait() or the next save tells
  std::uint64_t bytes = 0;  ///< of all tensors of the step
  std::string error;        ///< why it is not, and on which rank
};

/// The folder that a run keeps its checkpoints in (docs/formats/checkpoint.md). A step appears in it whole or not at
/// all; what is there loads on any number of ranks.
///
///   CheckpointFolder checkpoints("run/checkpoints", world, CheckpointOptions().keep_last(3));
///   checkpoints.save(step, state);
///
/// A disk that fails does not end a training: save() tells, once on rank 0 and in its report, and the next save tries
/// again. Thread-safety: one thread.
class CheckpointFolder {
 public:
  /// `folder` must be the same for all ranks, and is made when it is missing. Throws ConfigError with every fault of
  /// the options.
  CheckpointFolder(std::filesystem::path folder, const Ranks& ranks, const CheckpointOptions& options = {});
  /// Waits for saves that are under way.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& folder() const;

  /// Shows how far saves and loads are there, beside the progress line of training, rather than on a line of their own:
  /// `show_on(observer->terminal())`. Blocks: until no save is under way on this rank.
  void show_on(std::shared_ptr<observe::Terminal> terminal);

  /// Collective. Blocks: until the step is on the disk; asynchronous, until this rank's bytes are copied, and before
  /// that for the last but one save, if it is still under way. Throws ConfigError when the ranks' slices do not make
  /// up whole tensors.
  SaveReport save(std::int64_t step, const RankState& state);

  /// Collective. Blocks: until no save is under way. Reports the last one that failed since the last call, or the last.
  SaveReport wait();

  /// Calls `restore` with the newest step; when that is damaged on any rank, with the newest before it, and says so.
  /// The step's number, or nothing when there is none at all. Collective: every rank takes the same step.
  /// A step that a crash left without its name while it was exchanged for another gets it first.
  /// Throws StorageError when there are steps and none is intact, and whatever else `restore` throws on any rank.
  std::optional<std::int64_t> load_newest(const std::function<void(const SavedStep&)>& restore);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
