#pragma once

#include <tessera/flight/recorder.h>
#include <tessera/store/secret.h>

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "comm/watch/alarm.h"
#include "comm/watch/job_keys.h"
#include "comm/watch/neighbour.h"

namespace tessera::comm {

struct WatchSettings {
  int rank = 0;
  int size = 1;
  int store_host = -1;                         ///< the rank that hosts the job's store; -1: the launcher does
  std::string address;                         ///< of this rank, as the others reach it
  std::chrono::milliseconds silence{5000};     ///< after which a rank without a sign of life is lost
  std::chrono::milliseconds slow_after{5000};  ///< after which a wait is looked into
  std::chrono::milliseconds grace{2000};       ///< for a call to fail by itself once the job is lost
  std::string log_folder;                      ///< for reports as JSON; empty: none
};

/// Looks after the ranks of a job: notices who is lost or keeps others waiting, and explains it.
///
/// Note [Alarms]
/// Alarms are numbered keys of the job's store. Every rank waits for the next number, which costs nothing until it
/// comes. Who sees something first writes it; who finds the number taken has been told already. Each rank then answers
/// with what it recorded, and the one that raised the alarm reads the answers and prints one report. Nothing of this
/// happens while all is well.
class Watch {
 public:
  /// `keys`' store is closed when the watch ends: it must serve nobody else by then.
  /// `caller` is the thread whose stack explains a rank that is in no call.
  Watch(WatchSettings settings, JobKeys keys, const store::Secret& secret, flight::Recorder& recorder,
        pthread_t caller);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// A call of this rank failed. Blocks: until the report is out, a few seconds at most, and only the first time.
  void explain(const std::string& failure);

  /// Why this job cannot go on: a rank is lost. Nothing while it can.
  std::optional<std::string> verdict() const;

 private:
  void listen();
  void look();
  void lost(const Neighbour::Loss& loss);
  /// Whether this rank is the one to report.
  bool raise(const Alarm& alarm);
  void answer(int number);
  void conclude(int number, const Alarm& alarm);
  void store_is_lost(const std::string& reason);
  void close_store();
  void set_verdict(const std::string& text);
  /// Ends the process if a call is still under way after the grace: nothing else ends a wait inside a library.
  void end_stuck_call();
  void look_at_oldest_call();
  bool is_stopping() const;

  WatchSettings settings_;
  JobKeys keys_;
  flight::Recorder& recorder_;
  pthread_t caller_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool closed_ = false;  // the store's host left in order
  int next_alarm_ = 1;
  bool fatal_raised_ = false;
  bool explained_ = false;  // the report of a fatal alarm is out
  std::optional<std::string> verdict_;
  std::chrono::steady_clock::time_point verdict_time_;
  std::set<int> lost_;
  std::pair<std::string, std::uint64_t> last_slow_;  // group and sequence

  std::unique_ptr<Neighbour> neighbour_;
  std::thread listener_;
  std::thread looker_;
};

}  // namespace tessera::comm
