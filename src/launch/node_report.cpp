#include "launch/node_report.h"

#include <tessera/flight/clock.h>
#include <tessera/flight/process_state.h>

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "launch/exit_meaning.h"

namespace tessera::launch {
namespace {

bool is_in_a_call(const std::optional<flight::Snapshot>& snapshot) {
  return snapshot && !snapshot->calls.empty() && snapshot->calls.back().state == CallState::kStarted;
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

}  // namespace tessera::launch
