#pragma once

#include <tessera/comm/world.h>
#include <tessera/flight/recorder.h>
#include <tessera/store/secret.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>

#include "comm/launch_environment.h"
#include "comm/rendezvous.h"
#include "comm/watch/alarm.h"
#include "comm/watch/neighbour.h"

namespace tessera::comm {

struct WatchSettings {
  int rank = 0;
  int size = 1;
  int store_host = -1;                         ///< the rank that hosts the job's store; -1: the launcher does
  std::string address;                         ///< of this rank, as the others reach it
  std::chrono::milliseconds silence{5000};     ///< after which a rank without a sign of life is lost
  std::chrono::milliseconds slow_after{5000};  ///< after which a wait is investigated
  std::chrono::milliseconds grace{2000};       ///< for a call to fail by itself once the job is lost
  std::string log_folder;                      ///< for reports as JSON; empty: none
};

/// Watches the ranks of a job: notices ranks that are lost or keep others waiting, and reports why.
///
/// Note [Alarms]
/// Alarms are numbered keys of the job's store. Every rank waits for the key of the next number, which costs nothing
/// until it is set. The first rank that notices a problem sets the key; a rank that finds it set leaves the report to
/// that one. Each rank then answers with what it recorded, and the rank that raised the alarm reads the answers and
/// prints one report. Nothing of this happens while all is well.
class Watch {
 public:
  /// The watch closes the store of `keys` when it ends; nothing else may use the store by then.
  /// `caller` is the thread whose stack explains a rank that is in no call.
  Watch(WatchSettings settings, JobKeys keys, const store::Secret& secret, flight::Recorder& recorder,
        pthread_t caller);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Raises an alarm because a call of this rank failed. Blocks: until the report is out, a few seconds at most, and
  /// only the first time.
  void explain(const std::string& failure);

  /// Why this job cannot go on: a rank is lost. Nothing while it can.
  std::optional<std::string> verdict() const;

 private:
  void listen();
  void look();
  void lost(const Neighbour::Loss& loss);
  /// Returns whether this rank set the key of the alarm and so has to report.
  bool raise(const Alarm& alarm);
  void answer(int number);
  /// The call that this rank waits in is in a report now.
  void note_reported();
  void conclude(int number, const Alarm& alarm);
  void store_is_lost(const std::string& reason);
  void close_store();
  void set_verdict(const std::string& text);
  /// Ends the process if a call is still under way after the grace, because nothing else ends a wait inside a library.
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

/// Begins to watch the ranks that have just met. Null for a job of one, or when `options` turn it off.
/// Collective: over the job. To be called by the thread that trains.
std::unique_ptr<Watch> start_watch(const WorldOptions& options, const LaunchEnvironment& launch,
                                   const Rendezvous& rendezvous, flight::Recorder& recorder);

}  // namespace tessera::comm
