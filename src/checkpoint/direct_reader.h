#pragma once

#include <tessera/core/descriptor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "checkpoint/direct_alignment.h"
#include "checkpoint/file_reader.h"
#include "checkpoint/idle_pool.h"
#include "checkpoint/request_ring.h"

namespace tessera::checkpoints {

/// Reads past the page cache, block by block: while one is looked at, the disk brings the next.
/// Thread-safety: none.
class DirectReader {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a block
  static constexpr std::size_t kNumBuffers = 4;

  /// Null, with the system's error in `error`, where it gives no ring.
  static std::unique_ptr<DirectReader> make(int& error);
  ~DirectReader();
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  /// The block at `offset`, until the next call. For calls to come the disk is asked for those behind it, of the same
  /// length, up to `end`. Empty where only FileReader::read() will do, or tell what is wrong.
  /// `file` outlives this. Blocks: for the disk.
  std::span<const std::byte> read(const FileReader& file, std::uint64_t offset, std::size_t num_bytes,
                                  std::uint64_t end);
  /// False when it must not be used again.
  bool is_usable() const { return ring_->is_usable(); }

 private:
  static constexpr std::size_t kBufferBytes = kMostBytes + 2 * kMostAlignment;

  struct Slot {
    std::byte* buffer = nullptr;
    std::uint64_t offset = 0;
    std::size_t num_bytes = 0;
    std::size_t num_before = 0;  // in the buffer, for the alignment
    int result = 0;
    bool is_under_way = false;
  };

  explicit DirectReader(std::unique_ptr<RequestRing> ring);
  bool open(const FileReader& file);
  bool is_next(std::uint64_t offset, std::size_t num_bytes) const;
  bool ask_for(std::uint64_t offset, std::size_t num_bytes);
  void take_completion();
  void forget_asked();

  std::unique_ptr<RequestRing> ring_;
  std::array<Slot, kNumBuffers> slots_;
  std::size_t first_asked_ = 0;  // those behind it follow, round the array
  std::size_t num_asked_ = 0;
  const FileReader* file_ = nullptr;
  Descriptor direct_;  // none where the system refuses
  std::size_t alignment_ = 0;
};

class DirectReaders : public IdlePool<DirectReader> {};

}  // namespace tessera::checkpoints
