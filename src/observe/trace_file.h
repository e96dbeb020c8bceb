#pragma once

#include <tessera/flight/call_record.h>
#include <tessera/observe/clock_offset.h>
#include <tessera/observe/step_record.h>

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "observe/output_file.h"
#include "observe/protobuf.h"

namespace tessera::observe {

struct SpanEvent {
  std::string name;
  std::thread::id thread;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

struct CallEvent {
  CallRecord call;
  std::int64_t done_ns = 0;
  std::int64_t blocked_ns = 0;
};

struct StepEvent {
  StepRecord record;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

struct ClockEvent {
  ClockOffset offset;
  std::int64_t time_ns = 0;
};

using TraceEvent = std::variant<SpanEvent, CallEvent, StepEvent, ClockEvent>;

/// The trace of one rank: a track for its steps, one for each thread that had spans, and as many for communication as
/// calls were under way at once, since slices of one track may not overlap.
class TraceFile {
 public:
  /// Throws StorageError when it cannot be made. The spans of `main_thread` are shown first.
  TraceFile(const std::string& path, const RunDescription& run, std::thread::id main_thread);

  void add(const TraceEvent& event);
  /// Writes what was added. Throws StorageError.
  void flush();

 private:
  void add_event(const SpanEvent& span);
  void add_event(const CallEvent& call);
  void add_event(const StepEvent& step);
  void add_event(const ClockEvent& clock);

  void add_track(std::uint64_t track, const std::string& name, int place);
  std::uint64_t track_of(std::thread::id thread);
  /// One on which nothing is under way at `start_ns`.
  std::uint64_t track_for_call(std::int64_t start_ns, std::int64_t end_ns);
  /// Fill `event_`, in this order.
  void begin_event(int type, std::uint64_t track);
  void annotate(const char* name, std::int64_t value);
  void annotate(const char* name, double value);
  void annotate(const char* name, const std::string& value);
  /// Puts `event_` into the trace.
  void add_packet(std::int64_t time_ns);
  void end_slice(std::uint64_t track, std::int64_t time_ns);

  OutputFile file_;
  std::uint64_t sequence_;  // of this rank's packets
  std::uint64_t root_;      // the track of all of this rank's
  std::map<std::thread::id, std::uint64_t> threads_;
  std::vector<std::int64_t> call_ends_;  // of the latest call on each track for calls
  ProtobufWriter pending_;
  ProtobufWriter packet_;
  ProtobufWriter event_;
  ProtobufWriter annotation_;
};

}  // namespace tessera::observe
