#pragma once

#include <liburing.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "checkpoint/write_stretch.h"

namespace tessera::checkpoints {

/// Writes past the page cache, several requests at a time: while the disk takes some, the next bytes are copied into
/// buffers that are aligned as the disk wants it. Bytes that lie so in memory already are not copied.
/// Thread-safety: none.
class DirectWriter {
 public:
  /// Of the buffers, which are all the memory it takes.
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
  static constexpr std::size_t kNumBuffers = 4;

  /// Null, with the system's error in `error`, where it gives no ring.
  static std::unique_ptr<DirectWriter> make(int& error);
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  /// Returns 0, or the system's error; then any part of the bytes may be written.
  /// Requires: both ends of the stretch are multiples of `alignment`, a power of two; `file` is open with O_DIRECT.
  /// Blocks: until the disk took all of it.
  int write(int file, const WriteStretch& stretch, std::size_t alignment);
  /// False when it must not be used again.
  bool is_usable() const { return is_usable_; }

 private:
  /// One request. Its bytes are in its buffer, or where the caller has them.
  struct Slot {
    std::byte* buffer = nullptr;
    std::span<const std::byte> bytes;
    std::uint64_t offset = 0;
    bool is_under_way = false;
  };
  class Cursor;

  DirectWriter() = default;
  Slot* free_slot();
  void submit(Slot& slot);
  void take_completion();
  void fail(int error) { error_ = error_ == 0 ? error : error_; }

  io_uring ring_{};
  bool has_ring_ = false;
  bool is_usable_ = true;
  std::byte* memory_ = nullptr;
  std::array<Slot, kNumBuffers> slots_;
  std::size_t num_under_way_ = 0;
  int file_ = -1;
  std::size_t alignment_ = 0;
  int error_ = 0;
};

/// Writers that files share: as many as threads write at once. They go with the last file.
/// Thread-safety: all members may be called from any thread.
class DirectWriters {
 public:
  /// An idle one, or a new one. Null, with the system's error, when there is none to be had.
  std::unique_ptr<DirectWriter> take(int& error);
  void give_back(std::unique_ptr<DirectWriter> writer);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<DirectWriter>> idle_;
};

}  // namespace tessera::checkpoints
