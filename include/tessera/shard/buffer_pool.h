#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tessera {

/// Allocates uninitialised memory of a device, which is freed when nobody holds it.
using AllocateBytes = std::function<std::shared_ptr<void>(std::size_t num_bytes)>;

/// Private pages of host memory, unmapped when nobody holds them. Throws StorageError when the system has none.
std::shared_ptr<void> host_pages(std::size_t num_bytes);

/// Memory that units borrow while they are gathered. The pool keeps returned buffers for the next borrower, since fresh
/// pages cost more to fault in than most units take to gather, and frees them when it is destroyed. A pool that keeps
/// nothing frees them at once, for allocators that keep memory themselves.
/// Thread-safety: any thread may return memory, even after the pool is gone; all else from one thread.
class BufferPool {
 public:
  /// All buffers have `buffer_bytes`, the largest size that will be requested. With 0, each has the requested size, for
  /// units that are all gathered at once.
  BufferPool(AllocateBytes allocate, std::size_t buffer_bytes, c10::Device device = c10::kCPU);
  /// Keeps nothing: buffers have the requested size, and returned ones go back to the allocator.
  static BufferPool that_keeps_nothing(AllocateBytes allocate, c10::Device device);

  /// Uninitialised memory, which returns to the pool when the DataPtr is destroyed. On a device it belongs to the
  /// current stream, which at the end waits for the stream that is current then.
  c10::DataPtr lend(std::size_t num_bytes);

  std::size_t lent_bytes() const;
  std::size_t peak_bytes() const;
  /// Of all buffers, lent or kept.
  std::size_t held_bytes() const;

  /// Called with each change: of the bytes that are lent, and of the bytes of free buffers. observe() replaces the
  /// former observer.
  using OnChange = std::function<void(std::int64_t lent_bytes, std::int64_t spare_bytes)>;
  void observe(OnChange on_change);

 private:
  // Loans keep the State alive, but not the allocator: the threads of a group may be the last to release a tensor.
  struct State;

  AllocateBytes allocate_;
  std::size_t buffer_bytes_;
  c10::Device device_;
  std::shared_ptr<State> state_;
};

}  // namespace tessera
