#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/observe/tracer.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "observe/event_file.h"
#include "observe/output_file.h"
#include "observe/trace_file.h"

namespace tessera::observe {
namespace {

/// Some 20 MB: at ten thousand events a second, enough for seconds in which nothing can be written.
constexpr std::size_t kMaxPending = std::size_t{1} << 16;

/// An event of the device, whose times are known when it has come there.
struct UnderWay {
  std::variant<DeviceEvent, StepEvent> event;
  std::shared_ptr<DeviceMark> begin;
  std::shared_ptr<DeviceMark> end;  // of a DeviceEvent the same

  bool is_over() const { return begin->is_over() && end->is_over(); }
  /// Nothing when the device failed.
  std::optional<TraceEvent> timed() {
    const auto start_ns = begin->time_ns();
    const auto end_ns = end->time_ns();
    if (!start_ns || !end_ns) return std::nullopt;
    if (auto* const step = std::get_if<StepEvent>(&event)) {
      step->start_ns = *start_ns;
      step->end_ns = *end_ns;
      return std::move(*step);
    }
    auto& edge = std::get<DeviceEvent>(event);
    edge.time_ns = *end_ns;
    return std::move(edge);
  }
};

}  // namespace

struct Tracer::State {
  State(std::string path_of_file, const RunDescription& run)
      : path(std::move(path_of_file)), file(path, run, std::this_thread::get_id()) {}

  void add(TraceEvent event) {
    const std::lock_guard lock(mutex);
    if (pending.size() < kMaxPending) {
      pending.push_back(std::move(event));
    } else {
      num_dropped.fetch_add(1, std::memory_order_relaxed);
    }
  }
  bool add_later(UnderWay event) {
    const std::lock_guard lock(mutex);
    if (under_way.size() >= kMaxPending) {
      num_dropped.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    under_way.push_back(std::move(event));
    return true;
  }

  std::string path;
  std::atomic<bool> on = false;
  std::atomic<std::uint64_t> num_dropped = 0;
  std::mutex mutex;
  std::vector<TraceEvent> pending;
  std::vector<UnderWay> under_way;
  std::mutex writing;                     // taken before the other
  std::vector<UnderWay> asked;            // some of those under way, taken out to ask the device while others are added
  std::vector<TraceEvent> being_written;  // a member, so that its memory is reused
  TraceFile file;
};

Tracer::Tracer(const std::string& path, const RunDescription& run) : state_(std::make_unique<State>(path, run)) {}

Tracer::~Tracer() = default;

bool Tracer::is_on() const { return state_->on.load(std::memory_order_relaxed); }
void Tracer::start() { state_->on = true; }
void Tracer::stop() { state_->on = false; }

void Tracer::add_span(std::string_view name, std::int64_t start_ns, std::int64_t end_ns) {
  if (is_on()) state_->add(SpanEvent{std::string(name), std::this_thread::get_id(), start_ns, end_ns});
}

void Tracer::add_step(const StepRecord& record, std::int64_t start_ns, std::int64_t end_ns) {
  if (is_on()) state_->add(StepEvent{record, start_ns, end_ns});
}

bool Tracer::begin_device_span(std::string_view name, std::shared_ptr<DeviceMark> begin) {
  if (!is_on() || !begin) return false;
  DeviceEvent event{std::string(name), begin->stream()};
  return state_->add_later({std::move(event), begin, begin});
}

void Tracer::end_device_span(std::shared_ptr<DeviceMark> end) {
  if (!end) return;
  const std::lock_guard lock(state_->mutex);  // also when there is no room, and after stop(): the span has begun
  state_->under_way.push_back({DeviceEvent{std::nullopt, end->stream()}, end, end});
}

void Tracer::add_device_step(const StepRecord& record, std::shared_ptr<DeviceMark> begin,
                             std::shared_ptr<DeviceMark> end) {
  if (!is_on() || !begin || !end) return;
  state_->add_later({StepEvent{.record = record, .on_device = true}, std::move(begin), std::move(end)});
}

void Tracer::add_clock(const ClockOffset& offset) { state_->add(ClockEvent{offset, flight::now_ns()}); }

void Tracer::call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) {
  if (is_on()) state_->add(CallEvent{call, done_ns, blocked_ns});
}

void Tracer::task_ended(const std::string& what, std::int64_t started_ns, std::int64_t ended_ns) {
  add_span(what, started_ns, ended_ns);
}

void Tracer::write_pending() {
  const std::lock_guard writing(state_->writing);
  state_->being_written.clear();
  {
    const std::lock_guard lock(state_->mutex);
    state_->pending.swap(state_->being_written);
    std::move(state_->under_way.begin(), state_->under_way.end(), std::back_inserter(state_->asked));
    state_->under_way.clear();
  }
  std::set<std::int64_t> busy;  // their later events are not over either, and would come before the earlier ones
  std::erase_if(state_->asked, [&](UnderWay& one) {
    if (busy.contains(one.end->stream())) return false;
    if (!one.is_over()) {
      busy.insert(one.end->stream());
      return false;
    }
    if (auto event = one.timed()) state_->being_written.push_back(std::move(*event));
    return true;
  });
  for (const TraceEvent& event : state_->being_written) state_->file.add(event);
  state_->file.flush();
}

std::size_t Tracer::num_under_way() const {
  const std::lock_guard writing(state_->writing);
  const std::lock_guard lock(state_->mutex);
  return state_->asked.size() + state_->under_way.size();
}

std::uint64_t Tracer::num_dropped() const { return state_->num_dropped.load(std::memory_order_relaxed); }
const std::string& Tracer::path() const { return state_->path; }

Span::Span(std::shared_ptr<Tracer> tracer, std::string_view name, std::shared_ptr<ObservedDevice> device)
    : tracer_(std::move(tracer)) {
  if (!tracer_) return;
  name_ = name;
  start_ns_ = flight::now_ns();
  device_ = std::move(device);
  if (!device_) return;
  begin_ = device_->mark();
  if (!tracer_->begin_device_span(name_, begin_)) begin_ = nullptr;
}

Span::~Span() { end(); }

void Span::end() {
  if (!tracer_) return;
  if (begin_) tracer_->end_device_span(device_->mark_behind(*begin_));
  tracer_->add_span(name_, start_ns_, flight::now_ns());
  tracer_ = nullptr;
}

ClockOffset estimate_offset(std::span<const RoundTrip> trips) {
  if (trips.empty()) throw InternalError("clocks are compared by at least one round trip");
  const auto duration = [](const RoundTrip& trip) { return trip.answered_ns - trip.asked_ns; };
  const RoundTrip& best = *std::min_element(
      trips.begin(), trips.end(), [&](const RoundTrip& a, const RoundTrip& b) { return duration(a) < duration(b); });
  const std::int64_t half = duration(best) / 2;
  return {best.other_ns - (best.asked_ns + half), duration(best) - half};
}

ClockOffset operator+(const ClockOffset& offset, const ClockOffset& further) {
  return {offset.offset_ns + further.offset_ns, offset.error_ns + further.error_ns};
}

namespace {

/// A rank's clock and rank 0's at one moment.
struct Comparison {
  std::int64_t local_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
};

struct Packet {
  std::string_view bytes;
  std::optional<std::int64_t> time_ns;
};

struct RankTrace {
  MergedTrace summary;
  std::vector<Packet> packets;
  std::vector<Comparison> clocks;  // in the order of time
};

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (file) bytes << file.rdbuf();
  // An empty file sets a failure state too; it is refused later, as no trace.
  if (!file.is_open() || file.bad()) throw StorageError(path.string() + " cannot be read: " + std::strerror(errno));
  return bytes.str();
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw ConfigError(path + " is no trace that a rank wrote: " + why);
}

/// The integers among the annotations of an event that compares clocks; nothing for any other event.
std::optional<std::map<std::string_view, std::int64_t>> comparison_in(std::string_view event) {
  std::map<std::string_view, std::int64_t> numbers;
  bool is_comparison = false;
  ProtobufReader fields(event);
  while (const auto field = fields.next()) {
    if (field->number == perfetto::kEventName) is_comparison = field->bytes == kClockEvent;
    if (field->number != perfetto::kEventAnnotation) continue;
    std::string_view name;
    std::int64_t value = 0;
    ProtobufReader annotation(field->bytes);
    while (const auto part = annotation.next()) {
      if (part->number == perfetto::kAnnotationName) name = part->bytes;
      if (part->number == perfetto::kAnnotationInt) value = static_cast<std::int64_t>(part->value);
    }
    numbers[name] = value;
  }
  return is_comparison && fields.is_whole() ? std::optional(numbers) : std::nullopt;
}

void add_packet(RankTrace& trace, std::string_view bytes) {
  Packet packet{bytes, std::nullopt};
  std::optional<int> rank;
  std::string_view event;
  ProtobufReader fields(bytes);
  while (const auto field = fields.next()) {
    if (field->number == perfetto::kPacketTimestamp) packet.time_ns = static_cast<std::int64_t>(field->value);
    if (field->number == perfetto::kPacketSequence) rank = static_cast<int>(field->value) - 1;
    if (field->number == perfetto::kPacketTrackEvent) event = field->bytes;
  }
  if (!fields.is_whole()) refuse(trace.summary.path, "a packet is malformed");
  if (trace.packets.empty() && rank) trace.summary.rank = *rank;
  if (!rank || *rank < 0 || *rank != trace.summary.rank) refuse(trace.summary.path, "its packets are not of one rank");
  trace.packets.push_back(packet);
  if (auto numbers = comparison_in(event); numbers && packet.time_ns) {
    trace.clocks.push_back({*packet.time_ns, (*numbers)[kClockOffset], (*numbers)[kClockError]});
  }
}

RankTrace parse(const std::filesystem::path& path, std::string_view bytes) {
  RankTrace trace;
  trace.summary.path = path.string();
  ProtobufReader packets(bytes);
  while (const auto packet = packets.next()) {
    if (packet->number != perfetto::kTracePacket || packet->wire_type != 2) refuse(path.string(), "it has other parts");
    add_packet(trace, packet->bytes);
  }
  if (trace.packets.empty()) refuse(path.string(), "there is no packet in it");
  // A rank that is killed leaves the beginning of a packet; a rest that is longer than any packet is damage.
  constexpr std::size_t kMaxPacketBytes = std::size_t{64} << 10;
  if (packets.num_rest_bytes() > kMaxPacketBytes) {
    refuse(path.string(), "it is damaged " + std::to_string(packets.num_rest_bytes()) + " bytes before its end");
  }
  trace.summary.num_lost_bytes = static_cast<std::int64_t>(packets.num_rest_bytes());
  trace.summary.num_packets = static_cast<std::int64_t>(trace.packets.size());
  std::stable_sort(trace.clocks.begin(), trace.clocks.end(),
                   [](const Comparison& a, const Comparison& b) { return a.local_ns < b.local_ns; });
  if (!trace.clocks.empty()) {
    trace.summary.offset_ns = trace.clocks.front().offset_ns;
    trace.summary.error_ns = trace.clocks.front().error_ns;
  }
  return trace;
}

/// How far rank 0's clock was ahead when the rank's own showed `local_ns`.
std::int64_t offset_at(const std::vector<Comparison>& clocks, std::int64_t local_ns) {
  if (clocks.empty()) return 0;
  const auto after = std::upper_bound(clocks.begin(), clocks.end(), local_ns,
                                      [](std::int64_t time, const Comparison& one) { return time < one.local_ns; });
  if (after == clocks.begin()) return clocks.front().offset_ns;
  if (after == clocks.end()) return clocks.back().offset_ns;
  const Comparison& before = *(after - 1);
  const double share =
      static_cast<double>(local_ns - before.local_ns) / static_cast<double>(after->local_ns - before.local_ns);
  return before.offset_ns + std::llround(share * static_cast<double>(after->offset_ns - before.offset_ns));
}

void append_shifted(const RankTrace& trace, ProtobufWriter& merged) {
  ProtobufWriter shifted;
  std::string fields_kept;
  for (const Packet& packet : trace.packets) {
    if (!packet.time_ns) {
      merged.bytes_field(perfetto::kTracePacket, packet.bytes);
      continue;
    }
    fields_kept.clear();
    ProtobufReader fields(packet.bytes);
    while (const auto field = fields.next()) {
      if (field->number != perfetto::kPacketTimestamp) fields_kept.append(field->raw);
    }
    shifted.clear();
    shifted.int_field(perfetto::kPacketTimestamp, *packet.time_ns + offset_at(trace.clocks, *packet.time_ns));
    merged.bytes_field(perfetto::kTracePacket, shifted.bytes() + fields_kept);
  }
}

}  // namespace

std::vector<MergedTrace> merge_traces(const std::vector<std::filesystem::path>& files,
                                      const std::filesystem::path& merged) {
  if (files.empty()) throw ConfigError("expected the traces of one rank or more, found none");
  std::map<int, MergedTrace> ranks;
  for (const auto& path : files) {  // before anything is written: `merged` may be one of them
    std::error_code ignored;
    if (std::filesystem::equivalent(path, merged, ignored)) {
      throw ConfigError(merged.string() + " is to be read and to be written; choose another name for the merged trace");
    }
  }
  std::optional<OutputFile> output;
  for (const auto& path : files) {
    const std::string bytes = read_all(path);
    const RankTrace trace = parse(path, bytes);
    const auto [other, is_new] = ranks.emplace(trace.summary.rank, trace.summary);
    if (!is_new) {
      throw ConfigError("both " + other->second.path + " and " + path.string() + " are the trace of rank " +
                        std::to_string(trace.summary.rank) + "; merge the files of one run");
    }
    ProtobufWriter shifted;
    append_shifted(trace, shifted);
    if (!output) output.emplace(merged, OutputFile::Mode::kReplace);
    output->write(shifted.bytes());
  }
  std::vector<MergedTrace> summaries;
  for (const auto& [rank, summary] : ranks) summaries.push_back(summary);
  return summaries;
}

}  // namespace tessera::observe
