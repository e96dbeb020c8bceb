#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/byte_count.h>
#include <tessera/shard/slice_runs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/load/direct_reader.h"
#include "checkpoint/load/file_reader.h"

namespace tessera::checkpoints {

/// Bytes of a file that need no copy before they are checked: from the page cache, or from the disk past it.
///
/// Note [Past the page cache]
/// A load follows a restart, so the page cache holds nothing of the files. The parts of the ranks of one host alternate
/// in a file: what the system fetches ahead for one rank is what the next one asks for, so both wait for the same
/// pages, and the cache holds them as single small pages. Past the cache each rank asks the disk for its own bytes
/// alone, several blocks at a time, and takes no memory from training. This needs six tenths of the time. The price is
/// that another load reads from the disk again, and that processes that want the same bytes each fetch them. Therefore
/// a whole tensor, which all ranks of data parallelism read, goes through the page cache, unless the process is alone;
/// a part of a tensor does not.
class FileExtent {
 public:
  /// Both outlive this. Without a reader nothing goes past the page cache.
  FileExtent(const FileReader& file, DirectReader* direct) : file_(file), direct_(direct) {}

  /// The block at `offset`, valid until the next call. The caller will ask for the blocks behind it too, of the same
  /// length, up to `end`. Empty when the caller must use FileReader::read() instead, which also reports what is wrong.
  /// Blocks: for the disk.
  std::span<const std::byte> block(std::uint64_t offset, std::size_t num_bytes, std::uint64_t end);

 private:
  enum class Way { kCached, kPastCache, kNeither };

  Way choose();

  const FileReader& file_;
  DirectReader* const direct_;
  // The extent that the choice was made for.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  Way way_ = Way::kNeither;
  std::optional<FileView> view_;
};

/// The buffers for reading a slice, besides the destination: for a block of it, and for a piece of its file.
class ReadBuffers {
 public:
  /// `count` counts the bytes that reach their destination. `direct` reads those that may bypass the page cache: see
  /// Note [Past the page cache]. Both outlive this.
  explicit ReadBuffers(std::uint64_t block_bytes, ByteCount* count = nullptr, DirectReader* direct = nullptr)
      : block_bytes_(block_bytes), count_(count), direct_(direct) {}

 private:
  friend class SliceReader;
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 18;

  /// Room for a block of that length. Grows with need: most tensors of a model are small.
  std::span<std::byte> block_of(std::uint64_t num_bytes) {
    if (block_.size() < num_bytes) block_.resize(num_bytes);
    return std::span(block_).first(num_bytes);
  }

  std::uint64_t block_bytes_;
  ByteCount* count_;
  DirectReader* direct_;
  std::vector<std::byte> block_;
  std::vector<std::byte> window_;
};

/// One slice of a tensor, as it lies in its file. Reads it block by block, and checks each.
///
/// Note [Blocks, runs and pieces]
/// In the file the elements of a slice lie as runs. Joined, the runs are the slice in its own order, from which blocks
/// are cut; each block has a checksum. The wanted elements of the tensor are runs too. Where a wanted run overlaps one
/// of the slice is a piece: bytes of the slice that go to one extent of the destination. A block that lies wholly in a
/// piece is checked while it is copied to its destination; any other block goes through a buffer.
class SliceReader {
 public:
  /// All outlive this. `start` is where the tensor's bytes begin in the file.
  SliceReader(const FileReader& file, std::uint64_t start, const ManifestTensor& tensor, const ManifestSlice& slice,
              ReadBuffers& buffers);

  /// Fills the part of `into` that this slice holds. Throws StorageError for a damaged block.
  void read(const SliceRuns& wanted, std::span<std::byte> into);

  /// Reads all of it. Adds each fault, and calls `progress` with the bytes of each block.
  void verify(std::vector<std::string>& faults, const std::function<void(std::uint64_t)>& progress);

 private:
  struct Piece {
    std::uint64_t in_slice;
    std::uint64_t in_destination;
    std::uint64_t num_bytes;
  };

  std::uint64_t num_bytes() const;
  std::uint64_t block_begin(std::uint64_t block) const { return block * buffers_.block_bytes_; }
  std::uint64_t block_end(std::uint64_t block) const;
  /// Where a byte of the slice lies in the file, and how many follow it there.
  struct FilePlace {
    std::uint64_t offset;
    std::uint64_t left_of_run;  // itself among them
  };
  FilePlace place_of(std::uint64_t in_slice) const;
  void read_piece(Piece piece, std::span<std::byte> into);
  /// Brings a block to `target`. False when its checksum differs. The blocks up to `last` will be wanted too.
  bool load(std::uint64_t block, std::span<std::byte> target, std::uint64_t last);
  bool is_intact(std::uint64_t block);
  /// The bytes of a block, without a copy. Empty when gather() must be used instead.
  std::span<const std::byte> uncopied(std::uint64_t block, std::uint64_t last);
  void gather(std::uint64_t in_slice, std::span<std::byte> target);
  std::span<const std::byte> window(std::uint64_t offset, std::uint64_t num_bytes, std::uint64_t num_useful);
  std::string fault(std::uint64_t first_block, std::uint64_t last_block) const;

  const FileReader& file_;
  const std::uint64_t start_;
  const ManifestTensor& tensor_;
  const ManifestSlice& slice_;
  ReadBuffers& buffers_;
  const SliceRuns runs_;
  const std::uint64_t element_bytes_;
  std::uint64_t buffered_block_;    // in buffers_.block_
  std::uint64_t window_begin_ = 0;  // of buffers_.window_, in the file
  std::uint64_t window_end_ = 0;
  FileExtent extent_;
};

}  // namespace tessera::checkpoints
