#pragma once

#include <tessera/flight/call_record.h>
#include <tessera/observe/step_record.h>
#include <tessera/observe/tracer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "observe/event_file.h"
#include "observe/output_file.h"

namespace tessera::observe {

/// The numbers of the fields that we use, of Perfetto's trace_packet.proto, track_descriptor.proto, track_event.proto
/// and debug_annotation.proto. A trace is a sequence of packets, so concatenated traces are a trace.
namespace perfetto {

inline constexpr int kTracePacket = 1;

inline constexpr int kPacketTimestamp = 8;
inline constexpr int kPacketSequence = 10;  // the rank that wrote it, counted from 1
inline constexpr int kPacketTrackEvent = 11;
inline constexpr int kPacketSequenceFlags = 13;
inline constexpr int kPacketTrackDescriptor = 60;
inline constexpr int kNewSequence = 1;  // a flag

inline constexpr int kTrackUuid = 1;
inline constexpr int kTrackName = 2;
inline constexpr int kTrackParent = 5;
inline constexpr int kTrackChildOrdering = 11;
inline constexpr int kTrackSiblingRank = 12;
inline constexpr int kExplicitOrdering = 3;

inline constexpr int kEventAnnotation = 4;
inline constexpr int kEventType = 9;
inline constexpr int kEventTrack = 11;
inline constexpr int kEventCategory = 22;
inline constexpr int kEventName = 23;
inline constexpr int kSliceBegin = 1;
inline constexpr int kSliceEnd = 2;
inline constexpr int kInstant = 3;

inline constexpr int kAnnotationInt = 4;
inline constexpr int kAnnotationDouble = 5;
inline constexpr int kAnnotationString = 6;
inline constexpr int kAnnotationName = 10;

}  // namespace perfetto

// What merge_traces() looks for.
inline constexpr const char* kClockEvent = "clock comparison";
inline constexpr const char* kClockOffset = "offset_ns";
inline constexpr const char* kClockError = "error_ns";

struct SpanEvent {
  std::string name;
  std::thread::id thread;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// A stream of the device has come to the beginning of a span, or to the end of the one that began last. They are
/// written one by one: a device's clock is coarse, and where two have one time, their order says which span is inside.
struct DeviceEvent {
  std::optional<std::string> begins;  ///< the name of the span; nothing: one ends
  std::int64_t stream = 0;
  std::int64_t time_ns = 0;
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
  bool on_device = false;  ///< by the device's events, not by the host
};

struct ClockEvent {
  ClockOffset offset;
  std::int64_t time_ns = 0;
};

using TraceEvent = std::variant<SpanEvent, DeviceEvent, CallEvent, StepEvent, ClockEvent>;

/// The trace of one rank: a track for its steps, one for each thread that had spans, the same for its device and the
/// streams of it, and as many for communication as calls were under way at once, since slices of one track may not
/// overlap.
class TraceFile {
 public:
  /// Throws StorageError when it cannot be made. The spans of `main_thread` are shown first.
  TraceFile(const std::string& path, const RunDescription& run, std::thread::id main_thread);

  void add(const TraceEvent& event);
  /// Writes what was added. Throws StorageError.
  void flush();

 private:
  void add_event(const SpanEvent& span);
  void add_event(const DeviceEvent& event);
  void add_event(const CallEvent& call);
  void add_event(const StepEvent& step);
  void add_event(const ClockEvent& clock);

  void add_track(std::uint64_t track, const std::string& name, int place);
  std::uint64_t track_of(std::thread::id thread);
  std::uint64_t track_of_stream(std::int64_t stream);
  std::uint64_t track_of_device_steps();
  void begin_span(std::uint64_t track, const std::string& name, std::int64_t time_ns);
  /// A track on which no call is under way at `start_ns`.
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
  std::uint64_t root_;      // the parent of this rank's tracks
  std::map<std::thread::id, std::uint64_t> threads_;
  std::map<std::int64_t, std::uint64_t> streams_;  // of the device
  bool has_device_steps_ = false;
  std::vector<std::int64_t> call_ends_;  // of the latest call on each track for calls
  ProtobufWriter pending_;
  ProtobufWriter packet_;
  ProtobufWriter event_;
  ProtobufWriter annotation_;
};

}  // namespace tessera::observe
