#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

enum class AlarmKind {
  kSlow,     ///< somebody has waited for long; the job goes on
  kLost,     ///< a rank gives no sign of life
  kFailed,   ///< a call failed
  kClosing,  ///< the store's host leaves in order; there will be no more alarms
};

/// What one rank tells all others to look at.
struct Alarm {
  AlarmKind kind = AlarmKind::kSlow;
  int by = 0;           ///< who raised it, and will report
  int about = -1;       ///< the rank that is lost; -1: not known
  std::string trigger;  ///< a sentence

  bool fatal() const { return kind == AlarmKind::kLost || kind == AlarmKind::kFailed; }
};

std::string to_json(const Alarm& alarm);
/// Throws ConfigError for what is not an alarm.
Alarm alarm_from_json(std::string_view text);

/// Where a rank is to be found.
struct RankAddress {
  std::string address;  ///< of its heartbeats
  int port = 0;
  std::string process_space;  ///< equal for ranks that see each other's processes
  int process = 0;
  std::string black_box;  ///< what it records, for processes of the same space
};

std::string to_json(const RankAddress& address);
RankAddress rank_address_from_json(std::string_view text);

/// What a rank says when there is an alarm.
struct Answer {
  std::string snapshot;            ///< as flight::to_json writes it
  std::vector<std::string> stack;  ///< of its main thread when that is in no call
  std::vector<int> lost;           ///< ranks whose connections to this one broke
};

std::string to_json(const Answer& answer);
Answer answer_from_json(std::string_view text);

}  // namespace tessera::comm
