#include "observe/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::observe {
namespace {

// Offsets of track numbers from the rank's, and the places of the tracks from top to bottom.
constexpr std::uint64_t kSteps = 1;
constexpr std::uint64_t kThreads = 2;
constexpr std::uint64_t kDeviceSteps = 0x4000;
constexpr std::uint64_t kStreams = 0x4001;
constexpr std::uint64_t kCalls = 0x8000;
constexpr int kRankBits = 16;

std::string rank_text(const RunDescription& run) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return "rank " + std::to_string(run.rank) + " of " + std::to_string(run.num_ranks) + " (" + host.data() +
         ", process " + std::to_string(getpid()) + ")";
}

std::string shape_text(const CallRecord& call) {
  std::string text = call.dtype + " [";
  for (std::size_t i = 0; i < call.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(call.shape[i]);
  return text + "]";
}

}  // namespace

TraceFile::TraceFile(const std::string& path, const RunDescription& run, std::thread::id main_thread)
    : file_(path, OutputFile::Mode::kReplace),
      sequence_(static_cast<std::uint64_t>(run.rank) + 1),
      root_(sequence_ << kRankBits) {
  ProtobufWriter root;
  root.unsigned_field(perfetto::kTrackUuid, root_)
      .bytes_field(perfetto::kTrackName, rank_text(run))
      .int_field(perfetto::kTrackChildOrdering, perfetto::kExplicitOrdering)
      .int_field(perfetto::kTrackSiblingRank, run.rank);
  packet_.unsigned_field(perfetto::kPacketSequence, sequence_)
      .unsigned_field(perfetto::kPacketSequenceFlags, perfetto::kNewSequence)
      .message_field(perfetto::kPacketTrackDescriptor, root);
  pending_.message_field(perfetto::kTracePacket, packet_);
  add_track(root_ + kSteps, "steps", static_cast<int>(kSteps));
  track_of(main_thread);
  flush();
}

void TraceFile::add(const TraceEvent& event) {
  std::visit([this](const auto& one) { add_event(one); }, event);
}

void TraceFile::flush() {
  file_.write(pending_.bytes());
  pending_.clear();
}

void TraceFile::add_event(const SpanEvent& span) {
  const std::uint64_t track = track_of(span.thread);
  begin_span(track, span.name, span.start_ns);
  end_slice(track, span.end_ns);
}

void TraceFile::add_event(const DeviceEvent& event) {
  const std::uint64_t track = track_of_stream(event.stream);
  if (event.begins) {
    begin_span(track, *event.begins, event.time_ns);
  } else {
    end_slice(track, event.time_ns);
  }
}

void TraceFile::begin_span(std::uint64_t track, const std::string& name, std::int64_t time_ns) {
  begin_event(perfetto::kSliceBegin, track);
  event_.bytes_field(perfetto::kEventCategory, "compute").bytes_field(perfetto::kEventName, name);
  add_packet(time_ns);
}

void TraceFile::add_event(const CallEvent& call) {
  const CallRecord& record = call.call;
  const std::uint64_t track = track_for_call(record.started_ns, call.done_ns);
  begin_event(perfetto::kSliceBegin, track);
  event_.bytes_field(perfetto::kEventCategory, "communication").bytes_field(perfetto::kEventName, record.operation);
  annotate("group", record.group);
  annotate("number", static_cast<std::int64_t>(record.sequence));
  if (!record.dtype.empty()) annotate("tensor", shape_text(record));
  annotate("at", record.file + ":" + std::to_string(record.line));
  // The slice ends with the communication; the caller may have waited for it later.
  annotate("returned_after_ns", record.ended_ns - record.started_ns);
  annotate("blocked_ns", call.blocked_ns);
  if (record.state == CallState::kFailed) annotate("state", std::string("failed"));
  add_packet(record.started_ns);
  end_slice(track, call.done_ns);
}

void TraceFile::add_event(const StepEvent& step) {
  const std::uint64_t track = step.on_device ? track_of_device_steps() : root_ + kSteps;
  begin_event(perfetto::kSliceBegin, track);
  event_.bytes_field(perfetto::kEventCategory, "step")
      .bytes_field(perfetto::kEventName, "step " + std::to_string(step.record.step));
  if (step.record.loss) annotate("loss", *step.record.loss);
  if (step.record.tokens > 0) annotate("tokens", step.record.tokens);
  add_packet(step.start_ns);
  end_slice(track, step.end_ns);
}

void TraceFile::add_event(const ClockEvent& clock) {
  begin_event(perfetto::kInstant, root_);
  event_.bytes_field(perfetto::kEventName, kClockEvent);
  annotate(kClockOffset, clock.offset.offset_ns);
  annotate(kClockError, clock.offset.error_ns);
  add_packet(clock.time_ns);
}

void TraceFile::add_track(std::uint64_t track, const std::string& name, int place) {
  ProtobufWriter descriptor;
  descriptor.unsigned_field(perfetto::kTrackUuid, track)
      .bytes_field(perfetto::kTrackName, name)
      .unsigned_field(perfetto::kTrackParent, root_)
      .int_field(perfetto::kTrackSiblingRank, place);
  packet_.clear();
  packet_.unsigned_field(perfetto::kPacketSequence, sequence_)
      .message_field(perfetto::kPacketTrackDescriptor, descriptor);
  pending_.message_field(perfetto::kTracePacket, packet_);
}

std::uint64_t TraceFile::track_of(std::thread::id thread) {
  const auto [place, is_new] = threads_.emplace(thread, root_ + kThreads + threads_.size());
  if (is_new) {
    const std::size_t number = threads_.size();
    add_track(place->second, number == 1 ? "compute" : "thread " + std::to_string(number),
              static_cast<int>(kThreads + number));
  }
  return place->second;
}

std::uint64_t TraceFile::track_of_device_steps() {
  const std::uint64_t track = root_ + kDeviceSteps;
  if (!std::exchange(has_device_steps_, true)) add_track(track, "steps on the device", static_cast<int>(kDeviceSteps));
  return track;
}

std::uint64_t TraceFile::track_of_stream(std::int64_t stream) {
  const auto [place, is_new] = streams_.emplace(stream, root_ + kStreams + streams_.size());
  if (is_new) {
    const std::size_t number = streams_.size();
    add_track(place->second, number == 1 ? "device" : "device, stream " + std::to_string(number),
              static_cast<int>(kStreams + number));
  }
  return place->second;
}

std::uint64_t TraceFile::track_for_call(std::int64_t start_ns, std::int64_t end_ns) {
  const auto free =
      std::find_if(call_ends_.begin(), call_ends_.end(), [&](std::int64_t end) { return end <= start_ns; });
  const auto index = static_cast<std::uint64_t>(free - call_ends_.begin());
  const std::uint64_t track = root_ + kCalls + index;
  if (free != call_ends_.end()) {
    *free = end_ns;
    return track;
  }
  call_ends_.push_back(end_ns);
  add_track(track, index == 0 ? "communication" : "communication " + std::to_string(index + 1),
            static_cast<int>(kCalls + index));
  return track;
}

void TraceFile::begin_event(int type, std::uint64_t track) {
  event_.clear();
  event_.int_field(perfetto::kEventType, type).unsigned_field(perfetto::kEventTrack, track);
}

void TraceFile::annotate(const char* name, std::int64_t value) {
  annotation_.clear();
  annotation_.bytes_field(perfetto::kAnnotationName, name).int_field(perfetto::kAnnotationInt, value);
  event_.message_field(perfetto::kEventAnnotation, annotation_);
}

void TraceFile::annotate(const char* name, double value) {
  annotation_.clear();
  annotation_.bytes_field(perfetto::kAnnotationName, name).double_field(perfetto::kAnnotationDouble, value);
  event_.message_field(perfetto::kEventAnnotation, annotation_);
}

void TraceFile::annotate(const char* name, const std::string& value) {
  annotation_.clear();
  annotation_.bytes_field(perfetto::kAnnotationName, name).bytes_field(perfetto::kAnnotationString, value);
  event_.message_field(perfetto::kEventAnnotation, annotation_);
}

void TraceFile::add_packet(std::int64_t time_ns) {
  packet_.clear();
  packet_.int_field(perfetto::kPacketTimestamp, time_ns)
      .unsigned_field(perfetto::kPacketSequence, sequence_)
      .message_field(perfetto::kPacketTrackEvent, event_);
  pending_.message_field(perfetto::kTracePacket, packet_);
}

void TraceFile::end_slice(std::uint64_t track, std::int64_t time_ns) {
  begin_event(perfetto::kSliceEnd, track);
  add_packet(time_ns);
}

}  // namespace tessera::observe
