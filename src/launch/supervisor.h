#pragma once

#include <tessera/flight/hang_report.h>

#include <chrono>
#include <optional>

#include "launch/attempt.h"
#include "launch/backoff.h"
#include "launch/console.h"
#include "launch/descriptor.h"
#include "launch/job_store.h"
#include "launch/rendezvous_port.h"
#include "launch/run_plan.h"
#include "launch/signals.h"

namespace tessera::launch {

/// Runs a job to its end, restarts included: one thread that waits for everything at once.
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

  Verdict run_attempt(int generation);
  void watch(Attempt& attempt);
  void end_after_failure(Attempt& attempt);
  void begin_ending(Attempt& attempt, int signal);
  Verdict judge(const Attempt& attempt, int generation);
  void tell_what_ranks_did(int generation);
  bool wait_for_restart(int generation);
  void flush_console();

  void wait(std::optional<Clock::time_point> deadline, Attempt* attempt);
  void take_signals(Attempt* attempt);
  void take_signal(int signal, Attempt* attempt);
  void take_ending_signal(int signal, Attempt* attempt);
  bool must_stop_now() const { return front_is_gone_ || kill_at_once_; }
  void note(const std::string& text) { console_.add_note("tessera run: " + text); }

  RunPlan plan_;
  Descriptor front_;
  SignalReader signals_;
  RendezvousPort port_;
  JobStore store_;
  Console console_;
  Backoff backoff_;
  Clock::duration ran_for_{};
  std::optional<flight::HangReport> node_report_;  ///< of the attempt that failed
  std::optional<Clock::time_point> kill_time_;     ///< when the ranks that were told to end are killed
  int ending_signal_ = 0;                          ///< the first that asked the launcher to end
  Clock::time_point ending_time_;                  ///< when it came
  bool kill_at_once_ = false;                      ///< it was asked twice
  bool front_is_gone_ = false;
};

}  // namespace tessera::launch
