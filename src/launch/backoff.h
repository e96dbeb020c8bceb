#pragma once

#include <chrono>

namespace tessera::launch {

/// How long to wait before a restart. The first is immediate; a job that keeps failing waits twice as long each time,
/// and one that ran well for a while is treated as new.
class Backoff {
 public:
  static constexpr std::chrono::milliseconds kShortest{100};
  static constexpr std::chrono::milliseconds kLongest{5000};

  std::chrono::milliseconds next(bool ran_well);

 private:
  std::chrono::milliseconds next_{0};
};

}  // namespace tessera::launch
