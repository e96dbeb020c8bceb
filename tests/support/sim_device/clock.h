#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::testing::sim {

/// How far each stream has come, as a stream or a host thread knows it: a vector clock. A stream's tick is its number
/// of launches.
class Clock {
 public:
  std::uint64_t of(std::size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  bool knows(std::size_t stream, std::uint64_t tick) const { return of(stream) >= tick; }
  /// Whether there is nothing in `other` that this one does not know.
  bool covers(const Clock& other) const {
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
      if (other.ticks_[i] > of(i)) return false;
    }
    return true;
  }
  void learn(const Clock& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
  std::uint64_t advance(std::size_t stream) {
    if (ticks_.size() <= stream) ticks_.resize(stream + 1);
    return ++ticks_[stream];
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

}  // namespace tessera::testing::sim
