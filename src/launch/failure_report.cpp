#include "launch/failure_report.h"

#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sys/wait.h>
#include <utility>

#include "launch/process.h"

namespace tessera::launch {
namespace {

bool is_in_a_call(const std::optional<flight::Snapshot>& snapshot) {
  if (!snapshot) return false;
  const CallRecord* const call = flight::current_call(*snapshot);
  return call != nullptr && flight::is_waited_in(*call);
}

flight::RankStatus status_of(const Rank& rank) {
  flight::RankStatus status;
  status.rank = rank.number;
  status.snapshot = rank.recorded();
  if (rank.death) {
    status.condition = flight::RankCondition::kDead;
    status.detail = end_in_short(rank.death->wait_status);
  } else if (flight::state_of_process(rank.process).condition == flight::RankCondition::kStopped) {
    status.condition = flight::RankCondition::kStopped;
  } else {
    status.condition =
        is_in_a_call(status.snapshot) ? flight::RankCondition::kWaiting : flight::RankCondition::kRunning;
  }
  return status;
}

}  // namespace

std::optional<flight::HangReport> node_report(const Attempt& attempt, const RunPlan& plan, std::string trigger,
                                              std::vector<flight::RankStatus> others) {
  std::vector<flight::RankStatus> statuses = std::move(others);
  bool anything = false;
  for (const Rank& rank : attempt.ranks()) {
    statuses.push_back(status_of(rank));
    const auto& snapshot = statuses.back().snapshot;
    anything = anything || (snapshot && !snapshot->calls.empty());
  }
  if (!anything) return std::nullopt;
  std::sort(statuses.begin(), statuses.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return flight::analyse(std::move(trigger), true, flight::now_ns(), plan.world_size, std::move(statuses));
}

std::string end_in_short(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "ended by " + signal_name(WTERMSIG(wait_status));
  return "exit code " + std::to_string(WEXITSTATUS(wait_status));
}

std::string node_report_path(const RunPlan& plan, int generation) {
  return plan.attempt_folder(generation) + "/hang_node_" + std::to_string(plan.node_rank) + ".json";
}

std::string write_node_report(const flight::HangReport& report, const std::string& path) {
  std::ofstream file(path);
  file << flight::to_json(report);
  file.close();
  return file ? "" : path + " cannot be written: " + std::strerror(errno);
}

namespace {

std::string title_of(const Rank& rank) {
  return "rank " + std::to_string(rank.number) + " (pid " + std::to_string(rank.process) + ")";
}

std::string end_of(const Rank& rank, Clock::time_point cause, const RunPlan& plan) {
  if (!rank.death) return "was not started";
  const Death& death = *rank.death;
  if (death.killed) return "did not end within " + duration_for_people(plan.grace) + " of SIGTERM and was killed";
  if (death.wait_status == 0 && death.time <= cause) return "had finished";
  const std::string later =
      ", " + duration_for_people(std::max(death.time - cause, Clock::duration::zero())) + " later";
  if (WIFSIGNALED(death.wait_status) && WTERMSIG(death.wait_status) == SIGTERM) {
    return "ended by the launcher with SIGTERM" + later;
  }
  return exit_meaning(death.wait_status) + later;
}

void add_last_lines(std::vector<std::string>& report, const OutputTail& tail) {
  if (tail.lines().empty()) {
    report.emplace_back("  it wrote nothing");
    return;
  }
  report.emplace_back("  its last lines:");
  for (const std::string& line : tail.lines()) report.push_back("    | " + line);
}

void add_others(std::vector<std::string>& report, const Attempt& attempt, const RunPlan& plan, const Rank* first,
                Clock::time_point cause) {
  for (const Rank& rank : attempt.ranks()) {
    if (&rank != first) report.push_back("  " + title_of(rank) + " " + end_of(rank, cause, plan));
  }
}

}  // namespace

std::string duration_for_people(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.0f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.3g s", seconds);
  }
  return text;
}

std::string verdict_of(const Rank& rank) {
  const auto snapshot = rank.recorded();
  if (!snapshot) return "";
  // A rank whose last call succeeded has recovered since.
  const CallRecord* const call = flight::current_call(*snapshot);
  const bool went_on = call != nullptr && call->state == CallState::kDone;
  return went_on ? "" : snapshot->verdict;
}

std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause) {
  const Rank& first = *attempt.first_failure();
  std::vector<std::string> report;
  report.push_back(cause.empty()
                       ? "tessera run: the job failed because of rank " + std::to_string(first.number) +
                             (plan.num_nodes > 1 ? " of node " + std::to_string(plan.node_rank) + ", this one:" : ":")
                       : "tessera run: the job failed because " + cause);
  report.push_back("  " + title_of(first) + (cause.empty() ? " " : " was the first to end: ") +
                   exit_meaning(first.death->wait_status) + ", " +
                   duration_for_people(first.death->time - attempt.start_time()) + " after the start");
  const OutputTail& tail = first.output->tail();
  if (!tail.error_text().empty()) report.push_back("  error: " + tail.error_text());
  add_last_lines(report, tail);
  add_others(report, attempt, plan, &first, first.death->time);
  if (!plan.log_dir.empty()) report.push_back("  all output: " + plan.attempt_folder(generation));
  return report;
}

std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause, Clock::time_point time) {
  std::vector<std::string> report{"tessera run: the job failed because " + cause};
  add_others(report, attempt, plan, nullptr, time);
  if (!plan.log_dir.empty()) report.push_back("  all output: " + plan.attempt_folder(generation));
  return report;
}

}  // namespace tessera::launch
