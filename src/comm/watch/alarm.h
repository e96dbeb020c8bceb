#pragma once

#include <tessera/flight/hang_report.h>
#include <tessera/store/client.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::comm {

/// The keys of the watch in the job's store.
class JobKeys {
 public:
  JobKeys(std::shared_ptr<store::StoreClient> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  store::StoreClient& store() const { return *store_; }

  std::string address(int rank) const { return prefix_ + "address/" + std::to_string(rank); }
  /// watching() counts the ranks that watch; the last of them sets all_watch().
  std::string watching() const { return prefix_ + "watching"; }
  std::string all_watch() const { return prefix_ + "all_watch"; }
  std::string left(int rank) const { return prefix_ + "left/" + std::to_string(rank); }
  std::string alarm(int number) const { return prefix_ + "alarm/" + std::to_string(number); }
  std::string answer(int number, int rank) const {
    return prefix_ + "answer/" + std::to_string(number) + "/" + std::to_string(rank);
  }
  /// Set once the report of that alarm is out.
  std::string cause(int number) const { return prefix_ + "cause/" + std::to_string(number); }

 private:
  std::shared_ptr<store::StoreClient> store_;
  std::string prefix_;
};

enum class AlarmKind {
  kSlow,     ///< a rank has waited for long; the job goes on
  kLost,     ///< a rank gives no sign of life
  kFailed,   ///< a call failed
  kClosing,  ///< the store's host leaves in order; there will be no more alarms
};

/// What one rank reports to all others.
struct Alarm {
  AlarmKind kind = AlarmKind::kSlow;
  int by = 0;           ///< the rank that raised it, and will print the report
  int about = -1;       ///< the rank that is lost; -1: not known
  std::string trigger;  ///< a sentence

  bool fatal() const { return kind == AlarmKind::kLost || kind == AlarmKind::kFailed; }
};

std::string to_json(const Alarm& alarm);
/// Throws ConfigError for what is not an alarm.
Alarm alarm_from_json(std::string_view text);

/// Where to find a rank.
struct RankAddress {
  std::string address;  ///< of its heartbeats
  int port = 0;
  std::string process_space;  ///< equal for ranks that see each other's processes
  int process = 0;
  std::string black_box;  ///< the path of its record, for processes of the same space
};

std::string to_json(const RankAddress& address);
RankAddress rank_address_from_json(std::string_view text);

/// What a rank answers to an alarm.
struct Answer {
  std::string snapshot;            ///< as flight::to_json writes it
  std::vector<std::string> stack;  ///< of its main thread when that is in no call
  std::vector<int> lost;           ///< ranks whose connections to this one broke
};

std::string to_json(const Answer& answer);
Answer answer_from_json(std::string_view text);

/// Reads the answers of all ranks to an alarm, and analyses them.
/// Blocks: until all have answered, at most `timeout`.
flight::HangReport collect_report(const JobKeys& keys, int number, const Alarm& alarm, int size,
                                  std::chrono::milliseconds timeout);

/// On standard error, and as `hang_NUMBER.json` in the folder unless that is empty.
void publish(const flight::HangReport& report, int number, const std::string& folder);

}  // namespace tessera::comm
