#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/disk/request_ring.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "checkpoint/load/file_reader.h"

namespace tessera::checkpoints {

/// Reads past the page cache, block by block: while the caller uses one block, the disk reads the next.
/// Thread-safety: none.
class DirectReader {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a block
  static constexpr std::size_t kNumBuffers = 4;

  /// Null, with the system's error in `error`, where the system gives no ring.
  static std::unique_ptr<DirectReader> make(int& error);
  ~DirectReader();
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  /// The block at `offset`, valid until the next call. Also requests the blocks behind it for later calls, of the same
  /// length, up to `end`. Empty when the caller must use FileReader::read() instead, which also reports what is wrong.
  /// `file` outlives this. Blocks: for the disk.
  std::span<const std::byte> read(const FileReader& file, std::uint64_t offset, std::size_t num_bytes,
                                  std::uint64_t end);
  /// False when it must not be used again.
  bool is_usable() const { return ring_->is_usable(); }

 private:
  static constexpr std::size_t kBufferBytes = kMostBytes + 2 * disk::kMostAlignment;

  struct Slot {
    std::byte* buffer = nullptr;
    std::uint64_t offset = 0;
    std::size_t num_bytes = 0;
    std::size_t num_before = 0;  // bytes before the block in the buffer, for the alignment
    int result = 0;
    bool is_under_way = false;
  };

  explicit DirectReader(std::unique_ptr<disk::RequestRing> ring);
  bool open(const FileReader& file);
  bool is_next(std::uint64_t offset, std::size_t num_bytes) const;
  bool ask_for(std::uint64_t offset, std::size_t num_bytes);
  void take_completion();
  void forget_asked();

  std::unique_ptr<disk::RequestRing> ring_;
  std::array<Slot, kNumBuffers> slots_;
  std::size_t first_asked_ = 0;  // the others follow it, cyclically
  std::size_t num_asked_ = 0;
  const FileReader* file_ = nullptr;
  Descriptor direct_;  // none where the system refuses
  std::size_t alignment_ = 0;
};

class DirectReaders : public disk::IdlePool<DirectReader> {};

}  // namespace tessera::checkpoints
