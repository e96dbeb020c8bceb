#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tessera::checkpoints {

/// Several requests to the disk at a time, and buffers that are aligned as direct I/O wants it.
/// Thread-safety: none.
class RequestRing {
 public:
  struct Completion {
    void* owner;
    int result;  // bytes, or the system's error below 0
  };

  /// Null, with the system's error in `error`, where it gives no ring. There may be as many requests as buffers.
  static std::unique_ptr<RequestRing> make(std::size_t num_buffers, std::size_t buffer_bytes, int& error);
  /// Requires: no request is under way.
  ~RequestRing();
  RequestRing(const RequestRing&) = delete;
  RequestRing& operator=(const RequestRing&) = delete;

  std::byte* buffer(std::size_t index) const { return memory_ + index * buffer_bytes_; }
  std::size_t num_under_way() const { return num_under_way_; }
  /// False when it must not be used again.
  bool is_usable() const { return is_usable_; }

  /// These return 0 or the system's error. The bytes stay where they are until the request is complete.
  int read(int file, std::span<std::byte> into, std::uint64_t offset, void* owner);
  int write(int file, std::span<const std::byte> bytes, std::uint64_t offset, void* owner);

  /// Blocks: until one is complete. Requires: one is under way.
  Completion wait();

 private:
  RequestRing() = default;
  int submit();

  io_uring ring_{};
  bool has_ring_ = false;
  bool is_usable_ = true;
  std::byte* memory_ = nullptr;
  std::size_t num_buffers_ = 0;
  std::size_t buffer_bytes_ = 0;
  std::size_t num_under_way_ = 0;
};

/// Whether the same request may be made once more.
bool is_for_another_try(int result);

}  // namespace tessera::checkpoints
