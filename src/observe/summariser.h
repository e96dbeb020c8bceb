#pragma once

#include <tessera/observe/step_record.h>

#include <cstdint>
#include <optional>

namespace tessera::observe {

/// The present memory of this process. Takes some microseconds. Zeros where the system does not report it.
ProcessMemory process_memory();

/// A record with the times that the observer adds.
struct TimedRecord {
  StepRecord record;
  double seconds = 0;
  std::int64_t time_ns = 0;
  std::optional<double> host_seconds{};  ///< of a step on a device, whose time `seconds` is
};

/// Puts several records into one summary.
class Summariser {
 public:
  explicit Summariser(std::int64_t every) : every_(every) {}

  /// Returns a summary with each `every`-th record. The caller fills in its `memory`.
  std::optional<StepSummary> add(const TimedRecord& timed);
  /// A summary of the remaining records, if there are any.
  std::optional<StepSummary> take_rest();

 private:
  std::int64_t every_;
  std::optional<StepSummary> open_;
};

}  // namespace tessera::observe
