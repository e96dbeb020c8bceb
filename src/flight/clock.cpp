#include <tessera/flight/clock.h>

#include <cstdio>
#include <ctime>

namespace tessera::flight {

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

std::string seconds_text(std::int64_t nanoseconds) {
  std::string text(32, 0);
  text.resize(static_cast<std::size_t>(
      std::snprintf(text.data(), text.size(), "%.1f s", static_cast<double>(nanoseconds) / 1e9)));
  return text;
}

}  // namespace tessera::flight
