#pragma once

#include <memory>

namespace tessera::intercept {

class Ledger;

/// Note [Reports of device memory]
/// A device's allocator cannot be wrapped: CUDA's tensors do not ask for it where allocators are registered. But each
/// allocator of a device tells what it allocates and frees, and that it has none left, to the profiler of the thread.
/// LibTorch carries that along to autograd's threads. So while memory of devices is counted, what LibTorch takes for
/// the thread's profiler is ours: one that records nothing else. It has one place for each thread, so this and
/// LibTorch's own profiler exclude each other. What is freed on a thread that has another profiler, or none, counts
/// until its address is used again.
///
/// From its start to its end, on the thread that made it, what devices tell counts in the ledger. When a device has no
/// memory left, it throws the StorageError of the ledger.
class DeviceReports {
 public:
  explicit DeviceReports(const std::shared_ptr<Ledger>& ledger);
  ~DeviceReports();
  DeviceReports(const DeviceReports&) = delete;
  DeviceReports& operator=(const DeviceReports&) = delete;

 private:
  class Receiver;
  std::shared_ptr<Receiver> receiver_;
};

}  // namespace tessera::intercept
