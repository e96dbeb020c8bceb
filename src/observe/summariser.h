#pragma once

#include <tessera/observe/step_record.h>

#include <cstdint>
#include <optional>

namespace tessera::observe {

/// A record with what the observer knows of it.
struct TimedRecord {
  StepRecord record;
  double seconds = 0;
  std::int64_t time_ns = 0;
};

/// Puts several records into one summary.
class Summariser {
 public:
  explicit Summariser(std::int64_t every) : every_(every) {}

  /// A summary with each `every`-th record. Its memory is left to the caller.
  std::optional<StepSummary> add(const TimedRecord& timed);
  /// What no summary holds yet, if anything.
  std::optional<StepSummary> take_rest();

 private:
  std::int64_t every_;
  std::optional<StepSummary> open_;
};

}  // namespace tessera::observe
