#include <tessera/core/error.h>
#include <tessera/observe/clock_offset.h>

#include <algorithm>

namespace tessera::observe {

ClockOffset estimate_offset(std::span<const RoundTrip> trips) {
  if (trips.empty()) throw InternalError("clocks are compared by at least one round trip");
  const auto duration = [](const RoundTrip& trip) { return trip.answered_ns - trip.asked_ns; };
  const RoundTrip& best = *std::min_element(
      trips.begin(), trips.end(), [&](const RoundTrip& a, const RoundTrip& b) { return duration(a) < duration(b); });
  const std::int64_t half = duration(best) / 2;
  return {best.other_ns - (best.asked_ns + half), duration(best) - half};
}

ClockOffset operator+(const ClockOffset& offset, const ClockOffset& further) {
  return {offset.offset_ns + further.offset_ns, offset.error_ns + further.error_ns};
}

}  // namespace tessera::observe
