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
  bool under_way = false;   ///< asynchronous: wait() returns the outcome, the next save() logs a failure
  std::uint64_t bytes = 0;  ///< of all files of the step
  std::string error;        ///< why the step is not saved, and on which rank
};

/// The folder that a run keeps its checkpoints in (docs/formats/checkpoint.md). A step appears in it whole or not at
/// all, and loads on any number of ranks.
///
///   CheckpointFolder checkpoints("run/checkpoints", world, CheckpointOptions().keep_last(3));
///   checkpoints.save(step, state);
///
/// A disk that fails does not end the training: rank 0 logs the error, save() returns it in its report, and the next
/// save() tries again. Thread-safety: one thread.
class CheckpointFolder {
 public:
  /// `folder` must be the same for all ranks, and is created when it is missing. Throws ConfigError with every fault of
  /// the options.
  CheckpointFolder(std::filesystem::path folder, const Ranks& ranks, const CheckpointOptions& options = {});
  /// Waits for saves that are under way.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& folder() const;

  /// Shows the progress of saves and loads on `terminal`, beside the progress line of training, rather than on a line
  /// of their own: `show_on(observer->terminal())`. Blocks: until no save is under way on this rank.
  void show_on(std::shared_ptr<observe::Terminal> terminal);

  /// Collective. Blocks: until the step is on the disk. Asynchronous: until this rank's bytes are copied; if two saves
  /// are still under way, first until the older one is done. Throws ConfigError when the ranks' slices do not make up
  /// whole tensors.
  SaveReport save(std::int64_t step, const RankState& state);

  /// Collective. Blocks: until no save is under way. Reports on the last save. If any save failed since the last call,
  /// the report has the error of the first that did.
  SaveReport wait();

  /// Calls `restore` with the newest step. When that is damaged on any rank, logs this and tries the step before it.
  /// Returns the step's number, or nothing when the folder has no step. Collective: every rank loads the same step.
  /// First completes an exchange of two steps that a crash interrupted: the new step gets its name.
  /// Throws StorageError when there are steps and none is intact, and whatever else `restore` throws on any rank.
  std::optional<std::int64_t> load_newest(const std::function<void(const SavedStep&)>& restore);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
