#pragma once

#include <tessera/flight/call_record.h>
#include <tessera/observe/observed_device.h>
#include <tessera/observe/step_record.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::observe {

/// A query to another clock: when it was sent and answered by our clock, and the time that the other clock returned.
struct RoundTrip {
  std::int64_t asked_ns = 0;
  std::int64_t other_ns = 0;
  std::int64_t answered_ns = 0;
};

/// How far another clock is ahead of ours.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;  ///< the true offset is at most so far from `offset_ns`
};

/// The offset by the quickest of the round trips. The answer was given somewhere between question and arrival, so half
/// of that time bounds the error, however unlike the two ways are; the quickest bounds it best.
/// Throws InternalError when there is none.
ClockOffset estimate_offset(std::span<const RoundTrip> trips);

/// How far a third clock is ahead of ours: it is ahead of a second clock by `further`, which is ahead of ours by
/// `offset`.
ClockOffset operator+(const ClockOffset& offset, const ClockOffset& further);

/// What a rank computes and communicates, as a file that ui.perfetto.dev opens. `merge_traces()` puts the files of all
/// ranks on one time axis. Events wait in memory until `write_pending()`; those that do not fit are dropped and
/// counted. Thread-safety: all functions.
class Tracer : public flight::CallListener {
 public:
  /// Throws StorageError when the file cannot be made.
  Tracer(const std::string& path, const RunDescription& run);
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Whether events are recorded; `start()` and `stop()` change it. Initially they are not.
  bool is_on() const;
  void start();
  void stop();

  /// Something that this thread did. Times are flight::now_ns().
  void add_span(std::string_view name, std::int64_t start_ns, std::int64_t end_ns);
  void add_step(const StepRecord& record, std::int64_t start_ns, std::int64_t end_ns);
  /// The same of a device, which need not have come there yet: such events wait until it has. Null marks: nothing.
  /// A span is two calls; the second one ends the span of its stream that began last, and is needed if the first one
  /// returned true.
  bool begin_device_span(std::string_view name, std::shared_ptr<DeviceMark> begin);
  void end_device_span(std::shared_ptr<DeviceMark> end);
  void add_device_step(const StepRecord& record, std::shared_ptr<DeviceMark> begin, std::shared_ptr<DeviceMark> end);
  /// How far rank 0's clock was ahead of this rank's at this moment.
  void add_clock(const ClockOffset& offset);
  void call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) override;
  /// As a span.
  void task_ended(const std::string& what, std::int64_t started_ns, std::int64_t ended_ns) override;

  /// Writes the events since the last call, of the device those that are over. Throws StorageError.
  void write_pending();
  /// Events that wait for the device.
  std::size_t num_under_way() const;
  /// Events that did not fit into the memory between two calls of `write_pending()`.
  std::uint64_t num_dropped() const;
  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A span of time in the trace, from construction to destruction:
///
///   {
///     auto span = observer.span("forward");
///     loss = model->forward(batch);
///   }
///
/// Costs two clock readings and one lock; on a device also two events on the current stream. Nothing without a trace.
class [[nodiscard]] Span {
 public:
  /// `tracer` null: does nothing. `device` null: there is none.
  Span(std::shared_ptr<Tracer> tracer, std::string_view name, std::shared_ptr<ObservedDevice> device = nullptr);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// Ends it before its scope does.
  void end();

 private:
  std::shared_ptr<Tracer> tracer_;
  std::string name_;
  std::int64_t start_ns_ = 0;
  std::shared_ptr<ObservedDevice> device_;
  std::shared_ptr<DeviceMark> begin_;  // null: no span of the device has begun
};

/// What was found in the trace of one rank.
struct MergedTrace {
  std::string path;
  int rank = -1;
  std::int64_t num_packets = 0;
  std::int64_t offset_ns = 0;       ///< how far rank 0's clock was ahead at the first comparison
  std::int64_t error_ns = 0;        ///< of that comparison
  std::int64_t num_lost_bytes = 0;  ///< of a packet at the end that is not whole: its rank was killed
};

/// Writes the traces of several ranks into one file, on the clock of rank 0. Between two comparisons of the clocks
/// their offset is interpolated; before the first and after the last it is constant.
/// Throws ConfigError for a file that is no trace of ours, two of one rank or none at all, StorageError when one cannot
/// be read or written.
std::vector<MergedTrace> merge_traces(const std::vector<std::filesystem::path>& files,
                                      const std::filesystem::path& merged);

}  // namespace tessera::observe
