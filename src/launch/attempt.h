#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/flight/recorder.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "launch/rank_output.h"
#include "launch/run_plan.h"

namespace tessera::launch {

/// How long to wait before a restart. The first restart is immediate. A job that keeps failing waits twice as long each
/// time; after an attempt that ran well, the next restart is immediate again.
class Backoff {
 public:
  static constexpr std::chrono::milliseconds kShortest{100};
  static constexpr std::chrono::milliseconds kLongest{5000};

  std::chrono::milliseconds next(bool ran_well);

 private:
  std::chrono::milliseconds next_{0};
};

using Clock = std::chrono::steady_clock;

/// A rank's end, as the launcher saw it.
struct Death {
  int wait_status = 0;
  Clock::time_point time;
  bool killed = false;  ///< by the launcher, because the rank did not end after a signal
};

/// One rank of this node.
struct Rank {
  int number = 0;
  pid_t process = -1;
  Descriptor watch;  ///< a pidfd
  std::unique_ptr<RankOutput> output;
  std::optional<flight::BlackBox> box;  ///< in which it records its communication
  std::optional<Death> death;

  bool failed() const { return death && death->wait_status != 0; }
  /// What it recorded, also after its end; nothing when it recorded nothing.
  std::optional<flight::Snapshot> recorded() const { return box ? box->read() : std::nullopt; }
};

/// Why a program could not be started.
struct StartFault {
  std::string message;
  int exit_code = 0;
};

/// The ranks of one generation of the job.
class Attempt {
 public:
  /// Throws StorageError for log files that cannot be made.
  Attempt(const RunPlan& plan, int generation, Console& console);

  /// After a fault some ranks may already run; finish() ends them.
  std::optional<StartFault> start();

  /// Readable when a rank has ended.
  int deaths_descriptor() const { return deaths_.get(); }
  /// Records the ranks that have ended, in the order in which they ended, and reaps all other children.
  void reap();
  bool all_ended() const;

  /// Sends the signal to the process groups of the ranks that live.
  void signal(int number) const;
  /// Kills every descendant of this process, and reads the rest of the output.
  void finish();

  std::vector<Rank>& ranks() { return ranks_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  /// The rank that failed before all others; null when none has.
  const Rank* first_failure() const { return first_failure_; }
  Clock::time_point start_time() const { return start_time_; }

 private:
  OutputPlan output_plan(int rank) const;
  std::optional<StartFault> start(int local_rank);
  void record(Rank& rank, int wait_status, bool killed = false);

  const RunPlan& plan_;
  int generation_;
  Console& console_;
  Clock::time_point start_time_;
  Descriptor deaths_;
  std::vector<Rank> ranks_;
  const Rank* first_failure_ = nullptr;
};

}  // namespace tessera::launch
