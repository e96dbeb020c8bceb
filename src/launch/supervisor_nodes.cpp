// What the supervisor does besides when the job has several nodes.
#include <algorithm>
#include <csignal>

#include "launch/failure_report.h"
#include "launch/node_report.h"
#include "launch/supervisor.h"

namespace tessera::launch {
namespace {

constexpr int kRefusedExitCode = 2;  // that of a ConfigError

}  // namespace

/// Blocks: until all nodes have come, or are known not to. Returns the exit code when they do not.
Supervisor::Verdict Supervisor::gather() {
  const Agreement& agreement = nodes_->agreement();
  const auto deadline = Clock::now() + plan_.meeting_timeout;
  bool gave_up = false;
  while (!agreement.all_present() && agreement.refusal().empty() && !agreement.ending() && !is_ending()) {
    // Node 0's clock counts: the others wait for as long as it does.
    const bool counts = plan_.node_rank == 0 && !gave_up;
    wait(counts ? std::optional(deadline) : std::nullopt, nullptr);
    if (!counts || Clock::now() < deadline) continue;
    nodes_->tell(Agreement::gave_up());
    gave_up = true;
  }
  if (is_ending()) return exit_code_of_ending();
  if (!agreement.refusal().empty()) {
    note(agreement.refusal());
    return kRefusedExitCode;
  }
  if (agreement.ending()) {
    note(agreement.ending()->text);
    return agreement.ending()->exit_code;
  }
  plan_.first_rank = agreement.first_rank(plan_.node_rank);
  plan_.world_size = agreement.world_size();
  plan_.master_port = agreement.master_port();
  return std::nullopt;
}

bool Supervisor::others_ended(int generation) const {
  return nodes_ && (nodes_->agreement().failure(generation) != nullptr || nodes_->agreement().ending());
}

void Supervisor::end_with_others(Attempt& attempt, int generation) {
  const auto& ending = nodes_->agreement().ending();
  told_time_ = Clock::now();
  if (ending && ending->signal != 0) {
    note(ending->text + "; ending the ranks of this node");
    return begin_ending(attempt, ending->signal);
  }
  const std::string cause = "the job failed because " + nodes_->cause(generation);
  node_report_ = node_report(attempt, plan_, cause, nodes_->ranks_to_blame(generation));
  note(cause + "; ending the ranks of this node");
  begin_ending(attempt, SIGTERM);
}

/// Waits until all nodes have come to an end, and until it is known how the job goes on.
Supervisor::Verdict Supervisor::settle(const Attempt& attempt, int generation) {
  const Agreement& agreement = nodes_->agreement();
  nodes_->tell(Agreement::done(generation, plan_.node_rank));
  bool reported = false;
  bool decided = false;
  while (true) {
    if (!reported && others_ended(generation)) {
      report_to_people(attempt, generation);
      reported = true;
    }
    if (front_is_gone_) return exit_code_of_ending();
    if (ending_signal_ != 0) return end_of_signalled(attempt);
    if (agreement.ending()) return agreement.ending()->exit_code;
    if (agreement.generation() > generation) break;
    if (plan_.node_rank == 0 && agreement.all_done() && !decided) {
      decided = true;
      if (!decide(generation)) return exit_code_of_ending();
    }
    wait(std::nullopt, nullptr);
  }
  if (plan_.node_rank != 0) note("restart " + std::to_string(generation + 1));
  return std::nullopt;
}

/// What node 0 decides for all. False when this launcher is told to end meanwhile.
bool Supervisor::decide(int generation) {
  const Failure* failure = nodes_->agreement().failure(generation);
  if (failure == nullptr) {
    nodes_->tell(Agreement::over(0));
  } else if (failure->is_final || generation >= plan_.max_restarts) {
    nodes_->tell(Agreement::over(failure->exit_code));
  } else {
    if (!wait_for_restart(generation + 1)) return false;
    nodes_->tell(Agreement::restarted(generation + 1));
  }
  return true;
}

void Supervisor::report_to_people(const Attempt& attempt, int generation) {
  const Failure* failure = nodes_->agreement().failure(generation);
  const auto& ending = nodes_->agreement().ending();
  if (failure != nullptr && failure->node_rank == plan_.node_rank && attempt.first_failure() != nullptr) {
    return tell_failure(failure_report(attempt, plan_, generation, cause_of_failure(attempt)), generation);
  }
  // Without a word for success, and for a signal that has been told of when it came.
  if (failure == nullptr && (ending->text.empty() || ending->signal != 0)) return;
  if (told_time_ < attempt.start_time()) told_time_ = Clock::now();
  tell_failure(failure_report(attempt, plan_, generation, nodes_->cause(generation), told_time_), generation);
}

/// The other nodes and their ranks may still need the store: for a moment to learn how the job ended, or as long as
/// ranks have to end.
void Supervisor::leave_nodes() {
  if (front_is_gone_) return;  // and the others learn it as they would if this process had been killed as well
  const auto& ending = nodes_->agreement().ending();
  const bool is_lost = ending && ending->lost_node >= 0;
  nodes_->leave();
  nodes_.reset();
  if (!store_) return;
  constexpr std::chrono::milliseconds kMoment{1000};
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  const auto deadline = Clock::now() + kMoment + (is_lost ? std::chrono::milliseconds(0) : plan_.grace);
  while (store_->num_clients() > 0 && Clock::now() < deadline && !must_stop_now()) {
    wait(std::min(deadline, Clock::now() + kBetweenLooks), nullptr);
  }
}

}  // namespace tessera::launch
