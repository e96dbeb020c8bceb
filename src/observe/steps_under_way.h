#pragma once

#include <tessera/observe/observed_device.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "observe/summariser.h"

namespace tessera::observe {

/// A step that the host has recorded.
struct RecordedStep {
  TimedRecord timed;
  std::shared_ptr<DeviceMark> began;  // null: it has no times of a device
  std::shared_ptr<DeviceMark> ended;
};

/// Steps that the host has recorded, in their order: the device may be behind. One thread uses it.
class StepsUnderWay {
 public:
  void add(RecordedStep step) { steps_.push_back(std::move(step)); }
  std::size_t size() const { return steps_.size(); }

  /// Those that the device has done, with its times. Does not wait.
  std::vector<TimedRecord> take_done();
  /// All, with the host's times.
  std::vector<TimedRecord> take_all();

 private:
  std::deque<RecordedStep> steps_;
};

}  // namespace tessera::observe
