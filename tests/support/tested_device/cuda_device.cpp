// Compiled and linked where there is no GPU; not yet run on one.
#include <ATen/DeviceAccelerator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <mutex>

#include "support/tested_device.h"

namespace tessera::testing::tested {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::CachingDeviceAllocator::DeviceStats statistics_of(int device) {
  return at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
}

/// While one rank may not wait, none may: LibTorch has one mode for all threads.
class ForbiddenWaits {
 public:
  ForbiddenWaits() { change(1); }
  ~ForbiddenWaits() { change(-1); }
  ForbiddenWaits(const ForbiddenWaits&) = delete;
  ForbiddenWaits& operator=(const ForbiddenWaits&) = delete;

 private:
  static void change(int by) {
    static std::mutex mutex;
    static int num_ranks = 0;
    const std::lock_guard lock(mutex);
    num_ranks += by;
    c10::cuda::warning_state().set_sync_debug_mode(num_ranks > 0 ? c10::cuda::SyncDebugMode::L_ERROR
                                                                 : c10::cuda::SyncDebugMode::L_DISABLED);
  }
};

}  // namespace

const c10::DeviceType kDevice = c10::DeviceType::CUDA;
const bool kSameKernels = false;
const bool kSimulated = false;

std::string name() { return "cuda"; }
int num_devices() { return at::accelerator::deviceCount(); }

void connect() {}  // NCCL does

void synchronise() {
  for (int index = 0; index < num_devices(); ++index) {
    // Others may have no context yet, and would get one, of hundreds of megabytes.
    const auto device = static_cast<c10::DeviceIndex>(index);
    if (c10::cuda::hasPrimaryContext(device)) at::accelerator::synchronizeDevice(device);
  }
}

void reset() {}
void delay(std::uint64_t /*seed*/, std::chrono::microseconds /*longest*/) {}
void kernels_take(Duration /*duration*/) {}

void require_no_host_waits(const std::string& /*what*/, const std::function<void()>& launch) {
  const ForbiddenWaits forbidden;
  launch();
}

std::optional<std::uint64_t> num_host_waits() { return std::nullopt; }

std::size_t bytes_in_use(int device) {
  return static_cast<std::size_t>(statistics_of(device).allocated_bytes[kAll].current);
}
std::size_t peak_bytes(int device) {
  return static_cast<std::size_t>(statistics_of(device).allocated_bytes[kAll].peak);
}
void reset_peak_bytes(int device) { at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device)); }

}  // namespace tessera::testing::tested
