#include <tessera/shard/stream_order.h>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace tessera {

std::optional<c10::Stream> current_stream(const c10::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices) {
    const auto stream = current_stream(device);
    if (stream && std::ranges::find(streams, *stream) == streams.end()) streams.push_back(*stream);
  }
  return streams;
}

void order_streams(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

void StreamUses::note() {
  const auto current = current_stream(device_);
  if (!current) return;
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(streams_, *current) != streams_.end()) return;
  if (!streams_.empty()) order_streams(streams_.front(), *current);
  streams_.push_back(*current);
}

void StreamUses::join() {
  const auto current = current_stream(device_);
  if (!current) return;
  const std::lock_guard lock(mutex_);
  for (const c10::Stream& stream : std::exchange(streams_, {})) order_streams(stream, *current);
}

}  // namespace tessera
