#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/byte_count.h>
#include <tessera/shard/slice_runs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/direct_reader.h"
#include "checkpoint/file_reader.h"
#include "checkpoint/file_stretch.h"

namespace tessera::checkpoints {

/// What reading a slice needs beside the destination: a block of it, and a piece of its file.
class ReadBuffers {
 public:
  /// With a count of what reaches its destination, and a reader for what may go past the page cache: see Note [Past the
  /// page cache]. Both outlive this.
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
/// In the file the elements of a slice lie as runs. Laid side by side, they are the slice in its own order, which is
/// what blocks are cut from and checksums are taken of. What is wanted of the tensor are runs too, and where both
/// overlap is a piece: so many bytes of the slice that go to one stretch of the destination. Whole blocks of a piece
/// are brought to their destination and checked on the way; of any other the block goes through a buffer.
class SliceReader {
 public:
  /// All outlive this. `start` is where the tensor's bytes begin in the file.
  SliceReader(const FileReader& file, std::uint64_t start, const ManifestTensor& tensor, const ManifestSlice& slice,
              ReadBuffers& buffers);

  /// Fills that part of `into` which this slice holds of what is wanted. Throws StorageError for a damaged block.
  void read(const SliceRuns& wanted, std::span<std::byte> into);

  /// Reads all of it; adds each fault, and tells `progress` of each block's bytes.
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
  /// Brings a block to `target`. False when its checksum is another. It and those up to `last` are wanted.
  bool load(std::uint64_t block, std::span<std::byte> target, std::uint64_t last);
  bool is_intact(std::uint64_t block);
  /// A block without a copy of it. Empty where only gather() will do.
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
  FileStretch stretch_;
};

}  // namespace tessera::checkpoints
