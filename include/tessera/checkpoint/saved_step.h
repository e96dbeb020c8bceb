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

/// A step of a checkpoint, open for reading. Opening checks the manifest, that every file is there with its length, and
/// the headers. The files stay open, so a step can be read to its end while others remove it. No communication.
/// A handle: cheap to copy. Thread-safety: all members may be called from any thread.
class SavedStep {
 public:
  /// Throws StorageError naming every file that is not as the manifest says, and what is wrong with it.
  explicit SavedStep(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const;
  const Manifest& manifest() const;

  /// The elements of `slice` of a tensor, in its order, into `into`, which has exactly their bytes. Reads the blocks
  /// that hold them, and checks each: straight into `into` where it holds a whole block, else through buffers: a block
  /// and five MiB are all the memory that this takes. Blocks: for the disk.
  /// Throws StorageError naming file, tensor, slice and bytes of a block that is damaged, ConfigError for a tensor or
  /// slice that is not there. Then `into` holds anything.
  void read(std::string_view group, std::string_view name, const Slice& slice, std::span<std::byte> into) const;

  /// No other process of this host reads the same tensors: what is not in the page cache need not come there. Without
  /// this, only parts of tensors go past it, and whole ones, which ranks have in common, through it.
  void read_alone() { is_alone_ = true; }

  /// From now on what is read through this handle and its copies is counted there.
  void count_reads(std::shared_ptr<ByteCount> count) { count_ = std::move(count); }
  /// Tells the count, if there is one, that so many bytes will be read.
  void announce_reads(std::uint64_t num_bytes) const {
    if (count_) count_->total += num_bytes;
  }

  /// The bytes that verify() reads.
  std::uint64_t num_bytes() const;
  /// Reads everything. Every fault found, each named; none: intact. `progress` gets how many bytes were read so far.
  /// Blocks: for the disk.
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress = {}) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
  std::shared_ptr<ByteCount> count_;
  bool is_alone_ = false;
};

/// The newest step that opens and, when `thorough`, verifies. `skipped` gets a line for each newer one that does not,
/// saying why. None when there is none.
/// Throws StorageError when `root` cannot be listed.
std::optional<std::int64_t> newest_intact(const std::filesystem::path& root, bool thorough,
                                          std::vector<std::string>& skipped);

}  // namespace tessera
