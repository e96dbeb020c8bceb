#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "comm/connector.h"

namespace tessera::comm {

/// Note [What our layer costs]
/// A call of Gloo takes 0.1 ms or, when one of its threads has to wait for a core, several ms more. So the difference
/// between two series of calls says nothing about microseconds. Instead, the time that a call of ours spends inside
/// bare Gloo is measured within the same call; the rest is the cost of our layer.
class Stopwatch {
 public:
  void add(double seconds) { seconds_ = seconds_.value_or(0) + seconds; }
  /// Returns the sum of what was added since the last take(); nothing when nothing was added.
  std::optional<double> take() { return std::exchange(seconds_, std::nullopt); }

 private:
  std::optional<double> seconds_;
};

/// Connects groups to our Gloo over `bare`, with `watch` in between. Only the operations that are measured work:
/// all_reduce, all_gather and reduce_scatter of one tensor.
std::shared_ptr<Connector> timed_gloo(c10::intrusive_ptr<c10d::Backend> bare, std::shared_ptr<Stopwatch> watch);

}  // namespace tessera::comm
