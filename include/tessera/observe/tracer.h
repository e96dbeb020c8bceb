#pragma once

#include <tessera/flight/call_listener.h>
#include <tessera/observe/clock_offset.h>
#include <tessera/observe/step_record.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::observe {

/// What a rank computes and communicates, as a file that ui.perfetto.dev opens. `merge_traces()` puts the files of all
/// ranks on one time axis. Events wait in memory until `write_pending()`; what does not fit is counted and left out.
/// Thread-safety: all functions.
class Tracer : public flight::CallListener {
 public:
  /// Throws StorageError when the file cannot be made.
  Tracer(const std::string& path, const RunDescription& run);
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Whether events are taken at all; `start()` and `stop()` change it. It begins stopped.
  bool is_on() const;
  void start();
  void stop();

  /// Something that this thread did. Times are flight::now_ns().
  void add_span(std::string_view name, std::int64_t start_ns, std::int64_t end_ns);
  void add_step(const StepRecord& record, std::int64_t start_ns, std::int64_t end_ns);
  /// How far rank 0's clock was ahead of this rank's at this moment.
  void add_clock(const ClockOffset& offset);
  void call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) override;

  /// Writes what came in since. Throws StorageError.
  void write_pending();
  /// Events that did not fit into the memory between two calls of `write_pending()`.
  std::uint64_t num_dropped() const;
  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A stretch of time in the trace, from construction to destruction:
///
///   {
///     auto span = observer.span("forward");
///     loss = model->forward(batch);
///   }
///
/// Costs two looks at the clock and one lock; without a trace nothing.
class [[nodiscard]] Span {
 public:
  /// Null: does nothing.
  Span(std::shared_ptr<Tracer> tracer, std::string_view name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// Ends it before its scope does.
  void end();

 private:
  std::shared_ptr<Tracer> tracer_;
  std::string name_;
  std::int64_t start_ns_ = 0;
};

}  // namespace tessera::observe
