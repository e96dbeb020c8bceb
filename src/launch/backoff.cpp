#include "launch/backoff.h"

#include <algorithm>

namespace tessera::launch {

std::chrono::milliseconds Backoff::next(std::chrono::milliseconds ran_for) {
  if (ran_for >= kGoodRun) next_ = std::chrono::milliseconds(0);
  const auto wait = next_;
  next_ = std::clamp(2 * wait, kShortest, kLongest);
  return wait;
}

}  // namespace tessera::launch
