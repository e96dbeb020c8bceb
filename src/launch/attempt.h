#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/flight/recorder.h>

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/rank_output.h"
#include "launch/run_plan.h"

namespace tessera::launch {

using Clock = std::chrono::steady_clock;

/// A rank's end, as the launcher saw it.
struct Death {
  int wait_status = 0;
  Clock::time_point time;
  bool killed = false;  ///< by the launcher, after it did not end when told to
};

/// One rank of this node.
struct Rank {
  int number = 0;
  pid_t process = -1;
  Descriptor watch;  ///< a pidfd
  std::unique_ptr<RankOutput> output;
  std::optional<flight::BlackBox> box;  ///< what it records of its communication
  std::optional<Death> death;

  bool failed() const { return death && death->wait_status != 0; }
  /// Also after its end; nothing when it never recorded.
  std::optional<flight::Snapshot> recorded() const { return box ? box->read() : std::nullopt; }
};

/// A program that could not be started after all.
struct StartFault {
  std::string message;
  int exit_code = 0;
};

/// The ranks of one generation of the job.
class Attempt {
 public:
  /// Throws StorageError for log files that cannot be made.
  Attempt(const RunPlan& plan, int generation, Console& console);

  /// After a fault some ranks may run: finish() ends them.
  std::optional<StartFault> start();

  /// Readable when a rank has ended.
  int deaths_descriptor() const { return deaths_.get(); }
  /// Records the ranks that have ended, in the order in which they did, and reaps all other children.
  void reap();
  bool all_ended() const;

  /// To the process groups of the ranks that live.
  void signal(int number) const;
  /// Kills every descendant of this process, and takes what is left of the output.
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
