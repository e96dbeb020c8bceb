#include "observe/steps_under_way.h"

#include <utility>

namespace tessera::observe {

std::vector<TimedRecord> StepsUnderWay::take_done() {
  std::vector<TimedRecord> done;
  for (; !steps_.empty(); steps_.pop_front()) {
    auto& [timed, began, ended] = steps_.front();
    if (began && ended) {
      if (!began->is_over() || !ended->is_over()) break;
      const auto start_ns = began->time_ns();
      const auto end_ns = ended->time_ns();
      // What the program measured itself counts.
      timed.host_seconds = timed.seconds;
      if (start_ns && end_ns && !timed.record.seconds) timed.seconds = static_cast<double>(*end_ns - *start_ns) * 1e-9;
    }
    done.push_back(std::move(timed));
  }
  return done;
}

std::vector<TimedRecord> StepsUnderWay::take_all() {
  std::vector<TimedRecord> all;
  for (RecordedStep& step : steps_) all.push_back(std::move(step.timed));
  steps_.clear();
  return all;
}

}  // namespace tessera::observe
