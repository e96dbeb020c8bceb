#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <optional>
#include <vector>

namespace tessera {

/// Note [Memory that is lent on a device]
/// A device's allocator gives memory that was freed to the next tensor of the same stream at once: kernels of one
/// stream run in order, so those that read the old tensor are over before the new one is written. Another stream that
/// has used the memory must therefore be waited for by the stream of the allocation. LibTorch knows such streams of its
/// own tensors by record_stream(). Memory that we lend to a tensor's storage it does not know: there we order the
/// streams before the memory is freed.

/// The current stream of a device; of the CPU, none.
std::optional<c10::Stream> current_stream(const c10::Device& device);

/// The current stream of each of the devices, once. Of the CPU: none.
std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices);

/// Lets `later` wait for all that `earlier` has been given so far. Does nothing for one and the same.
void order_streams(const c10::Stream& earlier, const c10::Stream& later);

/// The streams that use some memory. Of the CPU: none.
/// Thread-safety: any thread may note.
class StreamUses {
 public:
  explicit StreamUses(c10::Device device) : device_(device) {}

  /// The memory has been written on the current stream, or a kernel is about to be launched on it. The first stream
  /// that is noted is the one that has written: others wait for it.
  void note();
  /// The current stream waits for all others, and they are forgotten.
  void join();

 private:
  c10::Device device_;
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

}  // namespace tessera
