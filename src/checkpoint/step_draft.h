#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_system.h"

namespace tessera::checkpoints {

/// A file of a step, as it is made before anybody writes tensors into it.
struct DraftFile {
  std::string name;  ///< without folders
  std::uint64_t num_bytes = 0;
  std::string head;  ///< its first bytes: the header of a safetensors file, all of an index
};

/// A step that is being written, in the folder ".step-N.saving". It becomes a step with commit(), and nothing of it is
/// one before. One that goes without commit() stays where it is: others may still be writing into it.
///
///   rank 0                                          others, once create() has returned
///   draft = StepDraft::create(files, root, 20, ...)
///   draft.write(...)                                draft = StepDraft::join(files, root, 20)
///   draft.publish_part(0, part)                     draft.write(...)
///   draft.commit(merge(draft.await_parts(n, t)))    draft.publish_part(rank, part)
///
/// Ranks tell rank 0 by files that they are done: so a thread in the background can save while the group computes.
/// Everything throws StorageError when the disk fails; then the draft is of no more use.
/// Thread-safety: write() may be called from any thread, for bytes that do not overlap; the rest from one at a time.
class StepDraft {
 public:
  /// Rank 0: makes the folder and the files, at full length and with their heads, and removes what an earlier try left.
  /// `root` is made when it is missing. A disk that is too small is found here, if the file system can set room aside.
  static StepDraft create(FileSystem& files, const std::filesystem::path& root, std::int64_t step,
                          const std::vector<DraftFile>& draft_files);
  /// The other ranks. Requires: create() has returned on rank 0.
  /// Blocks: at most for `patience`, until the folder is seen: file systems of networks may be late.
  static StepDraft join(FileSystem& files, const std::filesystem::path& root, std::int64_t step,
                        std::chrono::milliseconds patience = std::chrono::seconds(10));
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
  /// Tells rank 0 instead that it need not wait: this rank could not write its part.
  void publish_failure(int rank, std::string_view why);
  /// Rank 0: the parts of all ranks, in their order. Blocks: until they are there. Throws StorageError naming the ranks
  /// that are missing when `timeout` has passed, or the one that failed, and why.
  std::vector<std::string> await_parts(int num_ranks, std::chrono::milliseconds timeout);

  /// Rank 0: makes it a step. A step of that number that exists is exchanged for this one, and removed. Returns why
  /// the removal could not be done, which remove_leftovers() then does. Empty: nothing is left.
  /// Requires: all ranks have returned from sync(). Blocks: for the disk.
  std::string commit(std::string_view manifest);

 private:
  struct State;
  explicit StepDraft(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// Removes a step. It loses its name first, so that there is never a step with a part of its files.
void remove_step(FileSystem& files, const std::filesystem::path& root, std::int64_t step);

/// Gives a step its name whose exchange for a former one was cut in two, where the file system needs two renames for
/// it: the former one has lost its name, and this one is whole. Requires: nobody saves into `root`.
void finish_exchanges(FileSystem& files, const std::filesystem::path& root);

/// Removes what saves and removals left that did not come to their end. Requires: nobody saves into `root`.
void remove_leftovers(FileSystem& files, const std::filesystem::path& root);

}  // namespace tessera::checkpoints
