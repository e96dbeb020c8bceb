#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "checkpoint/direct_reader.h"
#include "checkpoint/file_reader.h"
#include "checkpoint/file_view.h"

namespace tessera::checkpoints {

/// Bytes of a file that need no copy before they are checked: from the page cache, or from the disk past it.
///
/// Note [Past the page cache]
/// A load follows a restart, so the page cache holds nothing of the files. Ranks of one host take turns in a file: what
/// the system fetches ahead for one of them is what the next one asks for; both wait for the same pages, and the cache
/// keeps them one by one. Past the cache each rank asks the disk for its own bytes alone, several blocks at a time, and
/// no memory is taken from training: in six tenths of the time. The price is that another load comes from the disk
/// again, and that processes that want the same bytes each fetch them. Therefore a tensor that is wanted as a whole,
/// as all ranks of data parallelism do, goes through the page cache, unless the process is alone; a part of a tensor
/// does not.
class FileStretch {
 public:
  /// Both outlive this. Without a reader nothing goes past the page cache.
  FileStretch(const FileReader& file, DirectReader* direct) : file_(file), direct_(direct) {}

  /// The block at `offset`, until the next call. What lies behind it up to `end` is wanted too, in blocks of the same
  /// length. Empty where only FileReader::read() will do, or tell what is wrong. Blocks: for the disk.
  std::span<const std::byte> block(std::uint64_t offset, std::size_t num_bytes, std::uint64_t end);

 private:
  enum class Way { kCached, kPastCache, kNeither };

  Way choose();

  const FileReader& file_;
  DirectReader* const direct_;
  // What the choice was made for.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  Way way_ = Way::kNeither;
  std::optional<FileView> view_;
};

}  // namespace tessera::checkpoints
