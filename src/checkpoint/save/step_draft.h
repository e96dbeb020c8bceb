#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/disk/file_system.h"

/// How ranks report to rank 0 what they have written: each by a file in the folder of the draft.
namespace tessera::checkpoints::draft_parts {

/// The file appears complete: it is written under another name, then renamed. Its bytes are brought to the disk before
/// that, since other clients of a network file system may read them at once.
void publish(FileSystem& files, const std::filesystem::path& folder, int rank, std::string_view text);
/// The same for a rank that has no part; without the reason if the disk cannot store it. A failure of the disk is
/// ignored.
void publish_failure(FileSystem& files, const std::filesystem::path& folder, int rank, std::string_view why);

/// Blocks: until the parts of all ranks are there. See StepDraft::await_parts().
std::vector<std::string> await_all(FileSystem& files, const std::filesystem::path& folder, int num_ranks,
                                   std::chrono::milliseconds timeout);

/// Removes the parts of all ranks.
void remove_all(FileSystem& files, const std::filesystem::path& folder);

}  // namespace tessera::checkpoints::draft_parts

namespace tessera::checkpoints {

/// "ROOT/step-00000020": the step.
std::filesystem::path step_path(const std::filesystem::path& root, std::int64_t step);
/// "ROOT/.step-00000020.saving": it is being written, or a crash left it.
std::filesystem::path saving_path(const std::filesystem::path& root, std::int64_t step);
/// "ROOT/.step-00000020.removing": it is being removed, or a crash left it.
std::filesystem::path removing_path(const std::filesystem::path& root, std::int64_t step);
/// Whether a name is of one of the last two kinds.
bool is_leftover(std::string_view name);
/// The step of a name of the last kind.
std::optional<std::int64_t> step_of_removing(std::string_view name);

/// A file of a step, as it is made before anybody writes tensors into it.
struct DraftFile {
  std::string name;  ///< without folders
  std::uint64_t num_bytes = 0;
  std::string head;  ///< its first bytes: the header of a safetensors file, all of an index
};

/// A step that is being written, in the folder ".step-N.saving". It becomes a step with commit(), not before. A draft
/// that is destroyed without commit() leaves its folder: other ranks may still be writing into it.
///
///   rank 0                                          others, once create() has returned
///   draft = StepDraft::create(files, root, 20, ...)
///   draft.write(...)                                draft = StepDraft::join(files, root, 20)
///   draft.publish_part(0, part)                     draft.write(...)
///   draft.commit(merge(draft.await_parts(n, t)))    draft.publish_part(rank, part)
///
/// Ranks notify rank 0 by files that they are done, so that a background thread can save while the group computes.
/// Members throw StorageError when the disk fails; then the draft is unusable.
/// Thread-safety: write() may be called from any thread, for bytes that do not overlap; the rest from one at a time.
class StepDraft {
 public:
  /// Rank 0: makes the folder and the files, at full length and with their heads, and removes what an earlier attempt
  /// left. `root` is created when it is missing. A disk that is too small is noticed here, if the file system can
  /// reserve space.
  static StepDraft create(FileSystem& files, const std::filesystem::path& root, std::int64_t step,
                          const std::vector<DraftFile>& draft_files);
  /// The other ranks. Requires: create() has returned on rank 0.
  /// Blocks: at most for `timeout`, until the folder is visible: network file systems may be late.
  static StepDraft join(FileSystem& files, const std::filesystem::path& root, std::int64_t step,
                        std::chrono::milliseconds timeout = std::chrono::seconds(10));
  ~StepDraft();
  StepDraft(StepDraft&&) noexcept;
  StepDraft& operator=(StepDraft&&) noexcept;

  const std::filesystem::path& folder() const;

  /// See OutputFile::write().
  void write(const std::string& file, std::vector<WriteRange> ranges);
  /// Brings to the disk what this rank has written. Blocks: for the disk.
  void sync();

  /// Hands a rank's part of the manifest to rank 0, after sync().
  void publish_part(int rank, std::string_view text);
  /// Notifies rank 0 instead that this rank could not write its part, so that rank 0 need not wait.
  void publish_failure(int rank, std::string_view why);
  /// Rank 0: the parts of all ranks, in their order. Blocks: until they are there. Throws StorageError naming the ranks
  /// that are missing when `timeout` has passed, or the one that failed, and why.
  std::vector<std::string> await_parts(int num_ranks, std::chrono::milliseconds timeout);

  /// Rank 0: turns the draft into a step. An existing step of that number is exchanged for this one, and removed.
  /// Returns why it could not be removed, which remove_leftovers() then does later; empty when nothing is left.
  /// Requires: all ranks have returned from sync(). Blocks: for the disk.
  std::string commit(std::string_view manifest);

 private:
  struct State;
  explicit StepDraft(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// Removes a step. It is renamed first, so that there is never a step with only a part of its files.
void remove_step(FileSystem& files, const std::filesystem::path& root, std::int64_t step);

/// Completes exchanges that were interrupted, on file systems that need two renames for one: the former step has lost
/// its name, and the new one, which is complete, gets it. Requires: nobody saves into `root`.
void finish_exchanges(FileSystem& files, const std::filesystem::path& root);

/// Removes what interrupted saves and removals left. Requires: nobody saves into `root`.
void remove_leftovers(FileSystem& files, const std::filesystem::path& root);

}  // namespace tessera::checkpoints
