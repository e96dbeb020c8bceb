#pragma once

#include <algorithm>
#include <chrono>

namespace tessera::store {

/// Note [What strangers may cost]
/// A connection costs some 50 microseconds before it is known that it cannot prove the secret, and the store shares its
/// cores with the job. So the time that is spent on strangers is counted, and when it has come to more than a share of
/// all time, no connection is accepted for a while: they wait in the system's queue, where they cost nothing. What a
/// client took that proved the secret in the end is given back, so that a crowd of honest ones is never kept waiting.
///
/// Pure: asks no clock.
class StrangerBudget {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `share` of the time, of which `most` can be saved up.
  StrangerBudget(double share, Duration most, TimePoint now) : share_(share), most_(most), saved_(most), time_(now) {}

  void spend(Duration spent, TimePoint now) {
    earn(now);
    saved_ -= spent;
  }
  void give_back(Duration spent) { saved_ = std::min(most_, saved_ + spent); }

  bool overdrawn() const { return saved_ < Duration::zero(); }
  /// When there is enough again for a handful of connections.
  /// Requires: share above 0.
  TimePoint solvent_at(TimePoint now) const {
    constexpr Duration kHandful = std::chrono::milliseconds(1);
    const double missing = static_cast<double>((std::min(kHandful, most_) - saved_).count());
    return now + Duration(static_cast<Duration::rep>(std::max(0.0, missing / share_)));
  }

 private:
  void earn(TimePoint now) {
    const auto earned = static_cast<Duration::rep>(share_ * static_cast<double>(Duration(now - time_).count()));
    saved_ = std::min(most_, saved_ + Duration(earned));
    time_ = now;
  }

  double share_;
  Duration most_;
  Duration saved_;
  TimePoint time_;
};

}  // namespace tessera::store
