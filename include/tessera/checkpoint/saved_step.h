#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/byte_count.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// "step-00000020": at least eight digits. Requires: step >= 0.
std::string step_folder_name(std::int64_t step);
/// None for any other name, also for one with more zeros than step_folder_name() writes.
std::optional<std::int64_t> step_of_folder(std::string_view name);

/// Steps with a folder of that name, ascending; intact or not. None when `root` does not exist.
/// Throws StorageError when it is no folder or cannot be read.
std::vector<std::int64_t> list_steps(const std::filesystem::path& root);

/// The steps to remove, ascending, so that the last `keep_last` (0: all) and the multiples of `keep_every` (0: none)
/// remain. Pure. Requires: `steps` ascend.
std::vector<std::int64_t> steps_to_remove(const std::vector<std::int64_t>& steps, std::int64_t keep_last,
                                          std::int64_t keep_every);

/// A step of a checkpoint, open for reading. Opening checks the manifest, that every file is there with its length, and
/// the headers. The files stay open, so a step can be read to its end while others remove it. No communication.
/// A handle: cheap to copy. Thread-safety: all members may be called from any thread.
class SavedStep {
 public:
  /// Throws StorageError naming every file that is not as the manifest says, and what is wrong with it.
  explicit SavedStep(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const;
  const Manifest& manifest() const;

  /// Reads the elements of `slice` of a tensor, in the slice's order, into `into`, whose size must be exactly their
  /// bytes. Reads and checks each block that holds some of them: straight into `into` where the whole block is wanted,
  /// else through a buffer. Takes the memory of one block and five MiB. Blocks: for the disk.
  /// Throws StorageError naming file, tensor, slice and bytes of a block that is damaged, ConfigError for a tensor or
  /// slice that is not there. Then the content of `into` is undefined.
  void read(std::string_view group, std::string_view name, const Slice& slice, std::span<std::byte> into) const;

  /// Declares that no other process of this host reads the same tensors, so that all reads may bypass the page cache.
  /// By default only parts of tensors bypass it; whole tensors, which several ranks read, go through it.
  void read_alone() { is_alone_ = true; }

  /// From now on `count` counts the bytes that are read through this handle and copies made of it.
  void count_reads(std::shared_ptr<ByteCount> count) { count_ = std::move(count); }
  /// Adds bytes that are going to be read to the total of the count, if there is one.
  void announce_reads(std::uint64_t num_bytes) const {
    if (count_) count_->total += num_bytes;
  }

  /// The bytes that verify() reads.
  std::uint64_t num_bytes() const;
  /// Reads everything and returns every fault; none: the step is intact. `progress` is called with the number of bytes
  /// read so far. Blocks: for the disk.
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress = {}) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
  std::shared_ptr<ByteCount> count_;
  bool is_alone_ = false;
};

/// The newest step that opens and, when `thorough`, verifies. `skipped` receives a line for each newer step that does
/// not, with the reason. None when there is none.
/// Throws StorageError when `root` cannot be listed.
std::optional<std::int64_t> newest_intact(const std::filesystem::path& root, bool thorough,
                                          std::vector<std::string>& skipped);

}  // namespace tessera
