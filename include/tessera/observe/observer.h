#pragma once

#include <tessera/core/log.h>
#include <tessera/observe/observe_options.h>
#include <tessera/observe/observed_device.h>
#include <tessera/observe/step_record.h>
#include <tessera/observe/tracer.h>
#include <tessera/observe/transfer_line.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::observe {

/// Shows and writes what a training run does, on a thread of its own. In a job, `tessera::make_observer()` makes one
/// whose trace also has the calls of the communicators.
///
///   auto observer = tessera::make_observer(world, options, {.total_steps = 1000});
///   for (std::int64_t step = 1; step <= 1000; ++step) {
///     ...
///     observer->record({.step = step, .loss = loss.item<double>(), .tokens = num_tokens});
///   }
///   observer->close();
///
/// Note [Watching does not stop the training]
/// The training thread puts a record into a queue and goes on; it wakes no other thread. When a disk is so slow that
/// the queue fills, records are left out and counted, and when a file cannot be written, that sink ends with a warning.
/// So the functions for the loop never throw and never wait; `close()` reports what went wrong.
///
/// Note [Time by events]
/// On a device the host runs ahead, and its clock tells when work was launched, not when it was done. So the time of a
/// step is the time between two events on the stream that is current when `record()` is called, and a span encloses its
/// work by two events as well. The training thread records them and goes on; the observer's thread asks some times a
/// second which of them are over, and passes a step on when the device has done it. `close()` waits for the last ones.
///
/// Thread-safety: all functions but close().
class Observer {
 public:
  /// Throws ConfigError for invalid options, StorageError for files that cannot be created, and CommError when the
  /// address for Prometheus cannot be bound. Make it just before the loop: the first step's time counts from here.
  /// `device`: the accelerator that this rank trains on; null: none.
  explicit Observer(const ObserveOptions& options, RunDescription run = {},
                    std::shared_ptr<ObservedDevice> device = nullptr);
  /// Closes, and logs what `close()` would throw. Also ends the progress line properly while an exception unwinds the
  /// stack.
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Call it on every rank when a step is done: each rank's trace has steps too.
  void record(StepRecord record);
  /// The next step's time counts from now. Call it after an evaluation or a checkpoint, which are no part of a step.
  void restart_clock();
  /// A span in the trace, until the returned object is destroyed; on a device also one of what the calling thread's
  /// current stream did. Does nothing without a trace.
  Span span(std::string_view name);
  /// Prints a line to standard output without tearing the progress line.
  void print(std::string_view line);
  /// A sink for a Logger that prints to standard error in the same way. May outlive the observer.
  LogSink log_sink();

  /// The terminal of the progress line, for lines beside it: CheckpointFolder::show_on().
  std::shared_ptr<Terminal> terminal() const;

  /// Another destination, on this rank, for the records from now on.
  void add_sink(std::unique_ptr<Sink> sink);

  /// Null without a trace.
  const std::shared_ptr<Tracer>& tracer() const;
  /// Null when the rank trains on no accelerator.
  const std::shared_ptr<ObservedDevice>& device() const;
  /// "127.0.0.1:41873"; empty without an endpoint.
  std::string prometheus_address() const;
  /// Records that were left out because the sinks were too slow.
  std::uint64_t num_dropped() const;

  /// Blocks: until everything is written; a device has a minute for its last steps. Throws StorageError that lists
  /// everything that was not. A second call does nothing.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::observe
