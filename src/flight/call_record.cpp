#include <tessera/flight/call_record.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>
#include <tessera/flight/rank_set.h>
#include <tessera/flight/snapshot.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <unistd.h>

namespace tessera {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

std::string data_text(const CallRecord& record) {
  return record.dtype.empty() ? "" : record.dtype + " " + shape_text(record.shape);
}

}  // namespace

std::string to_string(const CallRecord& record) {
  const char* state = record.state == CallState::kStarted ? "started"
                      : record.state == CallState::kDone  ? "done"
                                                          : "failed";
  std::string text = record.operation + " #" + std::to_string(record.sequence) + " of group " + record.group;
  if (record.peer >= 0) {
    text += (record.operation == "recv" ? ", from rank " : ", to rank ") + std::to_string(record.peer);
  }
  if (!record.dtype.empty()) text += ", " + data_text(record);
  return text + ", at " + record.file + ":" + std::to_string(record.line) + " (" + state + ")";
}

std::string signature(const CallRecord& record) {
  return record.dtype.empty() ? record.operation : record.operation + " " + data_text(record);
}

std::string agreement_key(const CallRecord& record) {
  constexpr std::array<const char*, 4> kEqualShapes = {"all_reduce", "broadcast", "reduce", "all_reduce_contributions"};
  const bool equal_shapes = std::any_of(kEqualShapes.begin(), kEqualShapes.end(),
                                        [&](const char* operation) { return record.operation == operation; });
  // Only the root's tensor holds data in a scatter; those of the others are stand-ins and are not compared.
  if (record.operation == "scatter" || record.dtype.empty()) return record.operation;
  return equal_shapes ? signature(record) : record.operation + " " + record.dtype;
}

}  // namespace tessera

namespace tessera::flight {

bool is_waited_in(const CallRecord& call) {
  return call.state == CallState::kStarted && (call.is_collective || call.awaited_ns != 0);
}

std::int64_t waits_since(const CallRecord& call) { return call.awaited_ns != 0 ? call.awaited_ns : call.started_ns; }

const CallRecord* current_call(const Snapshot& snapshot) {
  const CallRecord* latest = nullptr;
  for (auto call = snapshot.calls.rbegin(); call != snapshot.calls.rend(); ++call) {
    if (is_waited_in(*call)) return &*call;
    if (call->state == CallState::kStarted) continue;
    // A message that is received ahead begins before others that are over sooner.
    if (latest == nullptr || call->ended_ns > latest->ended_ns) latest = &*call;
  }
  return latest;
}

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

std::string seconds_text(std::int64_t nanoseconds) {
  std::string text(32, 0);
  text.resize(static_cast<std::size_t>(
      std::snprintf(text.data(), text.size(), "%.1f s", static_cast<double>(nanoseconds) / 1e9)));
  return text;
}

namespace {

/// Wider than a rank: numbers from a file may be so far apart that their difference overflows an int.
std::int64_t step_at(const std::vector<int>& ranks, std::size_t place) {
  return std::int64_t{ranks[place + 1]} - ranks[place];
}

/// How many ranks from `begin` on are evenly spaced.
std::size_t run_length(const std::vector<int>& ranks, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end + 1 < ranks.size() && step_at(ranks, end) == step_at(ranks, begin)) ++end;
  return std::min(end + 1, ranks.size()) - begin;
}

std::string run_text(int first, int last, std::int64_t step) {
  std::string text = std::to_string(first) + "-" + std::to_string(last);
  return step == 1 ? text : text + ":" + std::to_string(step);
}

/// Takes a number, and the character `before` it when that is not 0, off the front of `text`.
bool take(std::string_view& text, char before, int& number) {
  if (before != 0) {
    if (text.empty() || text.front() != before) return false;
    text.remove_prefix(1);
  }
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    const std::size_t length = run_length(ranks, i);
    if (!text.empty()) text += ",";
    if (length < 3) {  // "0,4" reads better than "0-4:4"
      text += std::to_string(ranks[i++]);
      continue;
    }
    text += run_text(ranks[i], ranks[i + length - 1], step_at(ranks, i));
    i += length;
  }
  return text;
}

std::vector<int> parse_ranks(std::string_view text) {
  constexpr int kMostRanks = 1 << 20;  // a text from a damaged box must not fill the memory
  std::vector<int> ranks;
  int first = 0;
  for (char before = 0; take(text, before, first); before = ',') {
    int last = first;
    int step = 1;
    if (take(text, '-', last)) take(text, ':', step);
    if (first < 0 || last < first || step < 1 || (last - first) / step >= kMostRanks) break;
    for (std::int64_t rank = first; rank <= last; rank += step) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string process_space() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, PATH_MAX> space{};
  if (readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) return host.data();
  return std::string(host.data()) + " " + space.data();
}

ProcessState state_of_process(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  // "12 (name, which may hold anything) S ..."
  const auto name_end = text.rfind(") ");
  if (name_end == std::string::npos) return {RankCondition::kDead, "its process has ended"};
  switch (text[name_end + 2]) {
    case 'Z':
    case 'X':
      return {RankCondition::kDead, "its process has ended"};
    case 'T':
    case 't':
      return {RankCondition::kStopped, "process " + std::to_string(process) + " was stopped by a signal or a debugger"};
    case 'D':
      return {RankCondition::kSilent, "process " + std::to_string(process) + " waits for a disk or the network"};
    default:
      return {RankCondition::kSilent, "process " + std::to_string(process) + " is alive but does not answer"};
  }
}

}  // namespace tessera::flight
