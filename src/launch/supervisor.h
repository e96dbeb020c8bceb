#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/flight/hang_report.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "launch/agreement.h"
#include "launch/attempt.h"
#include "launch/job_store.h"
#include "launch/process.h"
#include "launch/progress_inbox.h"
#include "launch/rank_output.h"
#include "launch/run_plan.h"

namespace tessera::launch {

/// Runs a node's part of a job to its end, restarts included. One thread waits for all events at once; other threads
/// serve the job's store and communicate with the other nodes.
/// Requires: adopt_orphans() in this process, which has no children yet.
class Supervisor {
 public:
  /// `front` becomes readable when the process that the user started is gone.
  Supervisor(RunPlan plan, Descriptor front);

  /// Returns the exit code of the command. Blocks: until the job is over and its output written.
  int run();

 private:
  /// How an attempt ended; no code when it may be tried again.
  using Verdict = std::optional<int>;

  int run_generations();
  Verdict run_attempt(int generation);
  void watch(Attempt& attempt, int generation);
  void end_after_failure(Attempt& attempt, int generation);
  std::string cause_of_failure(const Attempt& attempt) const;
  void begin_ending(Attempt& attempt, int signal);
  Verdict judge(const Attempt& attempt, int generation);
  int end_of_signalled(const Attempt& attempt);
  void tell_failure(const std::vector<std::string>& report, int generation);
  bool wait_for_restart(int generation);
  void flush_console();

  // With several nodes:
  Verdict gather();
  bool others_ended(int generation) const;
  void end_with_others(Attempt& attempt, int generation);
  Verdict settle(const Attempt& attempt, int generation);
  bool decide(int generation);
  void report_to_people(const Attempt& attempt, int generation);
  void leave_nodes();

  void wait(std::optional<Clock::time_point> deadline, Attempt* attempt);
  void take_signals(Attempt* attempt);
  void take_signal(int signal, Attempt* attempt);
  void take_ending_signal(int signal, Attempt* attempt);
  bool must_stop_now() const { return front_is_gone_ || kill_at_once_; }
  bool is_ending() const { return ending_signal_ != 0 || must_stop_now(); }
  int exit_code_of_ending() const;
  void note(const std::string& text) { console_.add_note("tessera run: " + text); }

  RunPlan plan_;
  Descriptor front_;
  SignalReader signals_;
  std::optional<RendezvousPort> port_;  ///< of node 0
  std::optional<JobStore> store_;       ///< of node 0
  std::unique_ptr<Nodes> nodes_;        ///< of a job of several; ends before the store does
  Console console_;
  std::optional<ProgressInbox> progress_;  ///< where a terminal can show it
  Backoff backoff_;
  bool ran_well_ = false;                          ///< the last attempt: for long, or its ranks had communicated
  std::optional<flight::HangReport> node_report_;  ///< of the attempt that failed
  Clock::time_point reported_time_;                ///< when another node's failure was reported here
  std::optional<Clock::time_point> kill_time_;     ///< when ranks that were signalled to end are killed
  int ending_signal_ = 0;                          ///< the first that asked the launcher to end
  Clock::time_point ending_time_;                  ///< when it came
  bool kill_at_once_ = false;                      ///< a second signal asked it to end
  bool front_is_gone_ = false;
};

}  // namespace tessera::launch
