#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "support/sim_device/allocators.h"
#include "support/sim_device/runtime.h"

namespace tessera::testing::sim {
namespace {

int index_of(const c10::Device& device) { return device.has_index() ? device.index() : current_device(); }

/// Streams that LibTorch hands out again and again, as it does on real devices.
c10::Stream pooled_stream(int device) {
  constexpr std::size_t kNumStreams = 4;
  static std::mutex mutex;
  static std::map<int, std::vector<c10::Stream>> pool;
  static std::map<int, std::size_t> next;
  const std::lock_guard lock(mutex);
  auto& streams = pool[device];
  if (streams.size() < kNumStreams) {
    streams.push_back(Runtime::get().new_stream(device));
    return streams.back();
  }
  return streams[next[device]++ % kNumStreams];
}

Runtime& runtime_for(const c10::Stream& stream) {
  Runtime::get().count_call(stream.device_index());
  return Runtime::get();
}

/// One that was never recorded is of no device.
Runtime& runtime_for(const EventState& event) {
  if (event.stream) Runtime::get().count_call(event.device);
  return Runtime::get();
}

EventState& event_at(void* event) { return *static_cast<EventState*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return sim::device(current_device()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kSim && device.index() < settings().num_devices, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().num_devices);
  }
  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, sim::device(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return Runtime::get().new_stream(index_of(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_high_priority*/) const override {
    return pooled_stream(index_of(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return runtime_for(stream).is_done(Runtime::get().queue(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    runtime_for(stream).wait(Runtime::get().queue(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Runtime::get().wait_for_device(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (!*event) *event = new EventState;
    runtime_for(stream).record(event_at(*event), Runtime::get().queue(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) runtime_for(stream).block(event_at(event), Runtime::get().queue(stream));
  }
  bool queryEvent(void* event) const override {
    return !event || runtime_for(event_at(event)).is_done(event_at(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event) runtime_for(event_at(event)).wait(event_at(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    if (!event) return;
    runtime_for(event_at(event));
    delete static_cast<EventState*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*device*/) const override {
    constexpr double kMsInNs = 1e-6;
    const auto& begin = event_at(from);
    const auto& end = event_at(to);
    TORCH_CHECK(runtime_for(begin).is_done(begin) && Runtime::get().is_done(end), "an event is not over yet");
    return static_cast<double>(*end.when_ns - *begin.when_ns) * kMsInNs;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace tessera::testing::sim
