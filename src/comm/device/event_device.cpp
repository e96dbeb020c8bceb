#include "comm/device/event_device.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

namespace tessera::comm {
namespace {

/// An event and when it was over.
struct Moment {
  std::shared_ptr<c10::Event> event;
  std::int64_t time_ns = 0;
};

std::shared_ptr<c10::Event> event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  event->record(stream);
  return event;
}

std::int64_t ns_between(const c10::Event& begin, const c10::Event& end) {
  constexpr double kNsInMs = 1e6;
  return std::llround(begin.elapsedTime(end) * kNsInMs);
}

/// Note [The host's time of an event]
/// Events only tell how much time is between two of them. One whose time the host knows, because it waited for it, is
/// where all others are counted from. CUDA's difference is a float of milliseconds: up to some seconds it is exact to
/// half a microsecond, as its events are, so later events take that one's place. What adds up is how far the two clocks
/// drift apart: as those of two hosts, some microseconds a second.
class EventClock {
 public:
  explicit EventClock(const c10::Device& device) : device_(device) {}

  void compare() {
    constexpr int kNumTries = 4;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    // The first try waits for all that the stream was given, the others for their event alone.
    Moment best;
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < kNumTries; ++i) {
      const std::int64_t asked_ns = flight::now_ns();
      auto event = event_on(stream);
      event->synchronize();
      const std::int64_t duration = flight::now_ns() - asked_ns;
      if (duration >= shortest) continue;
      shortest = duration;
      best = {std::move(event), asked_ns + duration / 2};
    }
    ns_between(*best.event, *best.event);  // throws where events do not measure time
    const std::lock_guard lock(mutex_);
    known_ = std::move(best);
  }

  /// Of an event that is over. Throws what the device throws.
  std::int64_t time_ns_of(const std::shared_ptr<c10::Event>& event) {
    constexpr std::int64_t kFarNs = 4'000'000'000;
    const std::lock_guard lock(mutex_);
    const std::int64_t since_ns = ns_between(*known_.event, *event);
    const std::int64_t time_ns = known_.time_ns + since_ns;
    if (since_ns > kFarNs) known_ = {event, time_ns};
    return time_ns;
  }

 private:
  const c10::Device device_;
  std::mutex mutex_;
  Moment known_;
};

/// The observer's thread asks: see Note [Threads that ask devices].
class EventMark final : public observe::DeviceMark {
 public:
  EventMark(std::shared_ptr<EventClock> clock, const c10::Stream& stream)
      : clock_(std::move(clock)), stream_(stream), event_(event_on(stream)) {}
  ~EventMark() override {
    const c10::DeviceGuard guard(stream_.device());
    event_ = nullptr;
  }

  bool is_over() override {
    const std::lock_guard lock(mutex_);
    if (!event_) return true;
    const c10::DeviceGuard guard(stream_.device());
    try {
      if (!event_->query()) return false;
      time_ns_ = clock_->time_ns_of(event_);
    } catch (const std::exception&) {
      time_ns_ = std::nullopt;  // the device failed: the training thread's next operator throws it too
    }
    event_ = nullptr;
    return true;
  }
  std::optional<std::int64_t> time_ns() override {
    const std::lock_guard lock(mutex_);
    return time_ns_;
  }
  std::int64_t stream() const override { return stream_.id(); }
  const c10::Stream& its_stream() const { return stream_; }

 private:
  const std::shared_ptr<EventClock> clock_;
  const c10::Stream stream_;
  std::mutex mutex_;
  std::shared_ptr<c10::Event> event_;  // null once its time is known
  std::optional<std::int64_t> time_ns_;
};

class EventDevice final : public observe::ObservedDevice {
 public:
  explicit EventDevice(const c10::Device& device)
      : device_(device),
        clock_(std::make_shared<EventClock>(device)),
        allocator_(dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()))) {}

  std::shared_ptr<observe::DeviceMark> mark() override {
    return mark_on([this] { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); });
  }
  std::shared_ptr<observe::DeviceMark> mark_behind(const observe::DeviceMark& begin) override {
    return mark_on([&] { return dynamic_cast<const EventMark&>(begin).its_stream(); });
  }

  std::optional<observe::DeviceMemory> memory() override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    if (!allocator_) return std::nullopt;
    try {
      const auto bytes = allocator_->getDeviceStats(device_.index()).allocated_bytes[kAll];
      return observe::DeviceMemory{bytes.current, bytes.peak};
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  void compare_clocks() override {
    try {
      clock_->compare();
    } catch (const c10::Error& error) {
      throw ConfigError("the time of steps on " + device_.str() +
                        " cannot be measured by its events: " + error.what_without_backtrace());
    }
  }

 private:
  template <typename StreamOf>
  std::shared_ptr<observe::DeviceMark> mark_on(const StreamOf& stream) {
    try {
      return std::make_shared<EventMark>(clock_, stream());
    } catch (const std::exception&) {  // as above
      return nullptr;
    }
  }

  const c10::Device device_;
  const std::shared_ptr<EventClock> clock_;
  c10::DeviceAllocator* const allocator_;  // null for one that keeps no figures
};

}  // namespace

std::optional<c10::Device> device_in_use() {
  const auto type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) return std::nullopt;
  const c10::DeviceIndex index = at::accelerator::getDeviceIndex();
  const bool is_used = at::globalContext().getAcceleratorHooksInterface(type).hasPrimaryContext(index);
  return is_used ? std::optional(c10::Device(*type, index)) : std::nullopt;
}

std::shared_ptr<observe::ObservedDevice> make_event_device(const c10::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto made = std::make_shared<EventDevice>(device.has_index() ? device : guard.getDevice());
  made->compare_clocks();
  return made;
}

}  // namespace tessera::comm
