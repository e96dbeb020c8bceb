#pragma once

#include <tessera/disk/request_ring.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "checkpoint/plan/write_extent.h"

namespace tessera::checkpoints {

/// Writes past the page cache, several requests at a time: while the disk takes some, the next bytes are copied into
/// buffers with the alignment that the disk requires. Bytes that are aligned in memory already are not copied.
/// Thread-safety: none.
class DirectWriter {
 public:
  /// Size and number of the buffers, which are all the memory it takes.
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
  static constexpr std::size_t kNumBuffers = 4;

  /// Null, with the system's error in `error`, where the system gives no ring.
  static std::unique_ptr<DirectWriter> make(int& error);

  /// Returns 0, or the system's error; then any part of the bytes may have been written.
  /// Requires: both ends of the extent are multiples of `alignment`, a power of two; `file` is open with O_DIRECT.
  /// Blocks: until the disk took all of it.
  int write(int file, const WriteExtent& extent, std::size_t alignment);
  /// False when it must not be used again.
  bool is_usable() const { return ring_->is_usable(); }

 private:
  /// One request. Its bytes are in its buffer, or where the caller has them.
  struct Slot {
    std::byte* buffer = nullptr;
    std::span<const std::byte> bytes;
    std::uint64_t offset = 0;
    bool is_under_way = false;
  };
  class Cursor;

  explicit DirectWriter(std::unique_ptr<disk::RequestRing> ring);
  Slot* free_slot();
  void submit(Slot& slot);
  void take_completion();
  void fail(int error) { error_ = error_ == 0 ? error : error_; }

  std::unique_ptr<disk::RequestRing> ring_;
  std::array<Slot, kNumBuffers> slots_;
  int file_ = -1;
  std::size_t alignment_ = 0;
  int error_ = 0;
};

/// Writers that files share; destroyed with the last file.
class DirectWriters : public disk::IdlePool<DirectWriter> {};

}  // namespace tessera::checkpoints
