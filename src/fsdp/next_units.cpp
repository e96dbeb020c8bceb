#include "fsdp/next_units.h"

#include <algorithm>

namespace tessera::fsdp {

bool NextUnits::ends_backward(const Place& place, const Place& next) {
  return std::get<2>(place) == Pass::kBackward && std::get<2>(next) != Pass::kBackward;
}

void NextUnits::used(int unit, Pass pass) {
  if (unit == std::get<1>(last_) && pass == std::get<2>(last_)) return;
  const Place place = after(last_, unit, pass);
  followed_by_[last_] = place;
  last_ = place;
}

std::vector<int> NextUnits::foretell(std::size_t count) const {
  std::vector<int> units;
  Place place = last_;
  // An order that goes round in circles among few units never yields more: no path is longer than the map.
  for (std::size_t i = 0; i < followed_by_.size() && units.size() < count; ++i) {
    const auto next = followed_by_.find(place);
    if (next == followed_by_.end() || ends_backward(place, next->second)) break;
    place = next->second;
    const int unit = std::get<1>(place);
    if (unit != std::get<1>(last_) && std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  }
  return units;
}

}  // namespace tessera::fsdp
