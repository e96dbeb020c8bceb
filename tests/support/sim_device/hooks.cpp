#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "support/sim_device/allocators.h"
#include "support/sim_device/generator.h"
#include "support/sim_device/runtime.h"

namespace tessera::testing::sim {
namespace {

/// The CPU's, under another device: the same numbers for the same seed.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(int device) {
    device_ = sim::device(device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return Runtime::get().is_in_use(device); }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(settings().num_devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int before = current_device();
    set_current_device(device);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* address) const override { return Runtime::get().is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* address) const override {
    const int device = Runtime::get().device_of(address);
    TORCH_CHECK(device >= 0, "no memory of a device");
    return sim::device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t num_bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr memory = device_allocator()->allocate(num_bytes);
    const std::size_t num_kept = std::min(num_bytes, storage.nbytes());
    if (num_kept > 0) device_allocator()->copy_data(memory.get(), storage.data(), num_kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(num_bytes);
  }
};

const bool kIsRegistered = [] {
  c10::register_privateuse1_backend("sim");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::setHostAllocator(kSim, pinned_allocator());
  return true;
}();

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* const all = [] {
    auto* const made = new std::vector<at::Generator>;
    for (int i = 0; i < settings().num_devices; ++i) made->push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all->at(static_cast<std::size_t>(device < 0 ? current_device() : device));
}

}  // namespace tessera::testing::sim
