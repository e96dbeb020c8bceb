#pragma once

#include <tessera/intercept/pass_tracker.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

namespace tessera::fsdp {

/// What uses parameters: each goes through the units in an order of its own.
using intercept::Pass;

/// Learns in which order units are used, and tells which come next.
///
/// Note [Learning the order]
/// Each place in the order is known by the unit, the one before it and the pass; what followed it last time is what
/// will follow. So nobody has to say where an iteration begins or ends, evaluations have their own order, and after
/// another path is taken the next iteration already knows it. All ranks see the same uses, so they foretell the same.
class NextUnits {
 public:
  void used(int unit, Pass pass);
  /// Up to `count` different units that will be used after the last one, nearest first. Fewer where nothing is known,
  /// and none past the end of a backward pass: parameters change then.
  std::vector<int> foretell(std::size_t count) const;

 private:
  using Place = std::tuple<int, int, Pass>;  // the unit before, the unit, the pass
  static bool ends_backward(const Place& place, const Place& next);
  static Place after(const Place& place, int unit, Pass pass) { return {std::get<1>(place), unit, pass}; }

  Place last_{-1, -1, Pass::kForward};
  std::map<Place, Place> followed_by_;
};

}  // namespace tessera::fsdp
