#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tessera {

/// Memory of a device, uninitialised, that is given back when nobody holds it.
using AllocateBytes = std::function<std::shared_ptr<void>(std::size_t num_bytes)>;

/// Pages of the host that are the process's own, and go back to the system. Throws StorageError when there are none.
std::shared_ptr<void> host_pages(std::size_t num_bytes);

/// Memory that units borrow while they are gathered. Buffers are kept for the next borrower, since fresh pages cost
/// more to fault in than most units take to gather, and given back with the pool; or at once, where who allocates keeps
/// them.
/// Thread-safety: memory may be given back by any thread, and later than the pool; else of one thread.
class BufferPool {
 public:
  /// Buffers are of one size, the largest that will be asked for; with 0, of the very size that is asked for, for units
  /// that are all gathered at once.
  BufferPool(AllocateBytes allocate, std::size_t buffer_bytes, c10::Device device = c10::kCPU);
  /// Keeps nothing: buffers are of the very size that is asked for, and go back to who allocates them.
  static BufferPool that_keeps_nothing(AllocateBytes allocate, c10::Device device);

  /// Uninitialised; returns to the pool by itself.
  c10::DataPtr lend(std::size_t num_bytes);

  std::size_t lent_bytes() const;
  std::size_t peak_bytes() const;
  /// Of all buffers, lent or kept.
  std::size_t held_bytes() const;

  /// Told of changes: bytes that are lent, and bytes of buffers that hold nothing. Replaces the one before.
  using OnChange = std::function<void(std::int64_t lent_bytes, std::int64_t spare_bytes)>;
  void observe(OnChange on_change);

 private:
  // What was lent holds on to it, and not to who allocates: the threads of a group let go of tensors too.
  struct State;

  AllocateBytes allocate_;
  std::size_t buffer_bytes_;
  c10::Device device_;
  std::shared_ptr<State> state_;
};

}  // namespace tessera
