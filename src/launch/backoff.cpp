#include "launch/backoff.h"

#include <algorithm>

namespace tessera::launch {

std::chrono::milliseconds Backoff::next(bool ran_well) {
  if (ran_well) next_ = std::chrono::milliseconds(0);
  const auto wait = next_;
  next_ = std::clamp(2 * wait, kShortest, kLongest);
  return wait;
}

}  // namespace tessera::launch
