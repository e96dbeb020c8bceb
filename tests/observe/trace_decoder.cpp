#include "observe/trace_decoder.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "observe/event_file.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using observe::ProtobufReader;

struct Track {
  std::string name;
  std::uint64_t parent = 0;
};

struct Event {
  std::int64_t time_ns = 0;
  int rank = -1;
  int type = 0;
  std::uint64_t track = 0;
  Slice slice;
};

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

class Decoder {
 public:
  explicit Decoder(const std::string& bytes) {
    ProtobufReader packets(bytes);
    while (const auto packet = packets.next()) {
      require(packet->number == 1, "a trace has packets only");
      take_packet(packet->bytes);
    }
    require(packets.is_whole(), "the trace is cut off");
  }

  std::vector<Slice> slices() {
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
    std::map<std::uint64_t, std::vector<std::size_t>> open;
    for (const Event& event : events_) take_event(event, open[event.track]);
    for (const auto& [track, stack] : open) require(stack.empty(), "a slice has no end");
    return slices_;
  }

 private:
  void take_packet(std::string_view bytes) {
    Event event;
    std::string_view track_event;
    ProtobufReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->number == 8) event.time_ns = static_cast<std::int64_t>(field->value);
      if (field->number == 10) event.rank = static_cast<int>(field->value) - 1;
      if (field->number == 11) track_event = field->bytes;
      if (field->number == 60) take_track(field->bytes);
    }
    require(fields.is_whole(), "a packet is malformed");
    require(event.rank >= 0, "a packet has no sequence");
    if (track_event.empty()) return;
    fill(event, track_event);
    events_.push_back(event);
  }

  void take_track(std::string_view bytes) {
    std::uint64_t uuid = 0;
    Track track;
    ProtobufReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->number == 1) uuid = field->value;
      if (field->number == 2) track.name = field->bytes;
      if (field->number == 5) track.parent = field->value;
    }
    require(!tracks_.contains(uuid), "two tracks have one number");
    tracks_[uuid] = track;
  }

  static void fill(Event& event, std::string_view bytes) {
    ProtobufReader fields(bytes);
    while (const auto field = fields.next()) {
      if (field->number == 9) event.type = static_cast<int>(field->value);
      if (field->number == 11) event.track = field->value;
      if (field->number == 22) event.slice.category = field->bytes;
      if (field->number == 23) event.slice.name = field->bytes;
      if (field->number != 4) continue;
      std::string name;
      std::string value;
      ProtobufReader annotation(field->bytes);
      while (const auto part = annotation.next()) {
        if (part->number == 10) name = part->bytes;
        if (part->number == 4) value = std::to_string(static_cast<std::int64_t>(part->value));
        if (part->number == 5) value = std::to_string(std::bit_cast<double>(part->value));
        if (part->number == 6) value = part->bytes;
      }
      event.slice.annotations[name] = value;
    }
  }

  void take_event(const Event& event, std::vector<std::size_t>& stack) {
    if (event.type == 2) {
      require(!stack.empty(), "an end without a beginning");
      slices_[stack.back()].end_ns = event.time_ns;
      stack.pop_back();
      return;
    }
    Slice slice = event.slice;
    slice.rank = event.rank;
    slice.track = name_of(event.track);
    slice.start_ns = slice.end_ns = event.time_ns;
    if (event.type == 1) stack.push_back(slices_.size());
    slices_.push_back(slice);
  }

  std::string name_of(std::uint64_t uuid) const {
    require(tracks_.contains(uuid), "an event on a track that nobody described");
    const Track& track = tracks_.at(uuid);
    return track.parent == 0 ? track.name : name_of(track.parent) + "/" + track.name;
  }

  std::map<std::uint64_t, Track> tracks_;
  std::vector<Event> events_;
  std::vector<Slice> slices_;
};

}  // namespace

std::vector<Slice> read_trace(const std::filesystem::path& path) { return Decoder(text_of_file(path)).slices(); }

std::vector<Slice> on_track(const std::vector<Slice>& slices, int rank, const std::string& track) {
  std::vector<Slice> found;
  std::copy_if(slices.begin(), slices.end(), std::back_inserter(found),
               [&](const Slice& slice) { return slice.rank == rank && slice.track.ends_with("/" + track); });
  return found;
}

}  // namespace tessera::testing
