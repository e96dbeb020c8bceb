#pragma once

#include <tessera/observe/step_record.h>

namespace tessera::observe {

/// Where summaries go. A destination of your own is one of these: see Observer::add_sink().
/// All functions are called by one thread, never the training's. What they throw ends the sink, not the training.
class Sink {
 public:
  Sink() = default;
  virtual ~Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  virtual void take(const StepSummary& summary) = 0;
  /// Called some times a second: write what was held back.
  virtual void flush() {}
  /// The last call.
  virtual void close() {}
};

}  // namespace tessera::observe
