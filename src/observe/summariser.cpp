#include "observe/summariser.h"

#include <utility>

namespace tessera::observe {

std::optional<StepSummary> Summariser::add(const TimedRecord& timed) {
  const bool is_first = !open_;
  if (is_first) open_.emplace();
  open_->num_steps = is_first ? 1 : open_->num_steps + 1;
  open_->last = timed.record;
  open_->last.seconds = timed.seconds;
  open_->tokens += timed.record.tokens;
  open_->seconds += timed.seconds;
  open_->time_ns = timed.time_ns;
  return open_->num_steps >= every_ ? take_rest() : std::nullopt;
}

std::optional<StepSummary> Summariser::take_rest() { return std::exchange(open_, std::nullopt); }

}  // namespace tessera::observe
