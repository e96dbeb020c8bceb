#pragma once

#include <tessera/flight/hang_report.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::flight {

/// Ranks that a test lets make calls, one after another.
class Scene {
 public:
  explicit Scene(int num_ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < num_ranks; ++rank) all.push_back(rank);
    for (int rank = 0; rank < num_ranks; ++rank) {
      RankStatus status;
      status.rank = rank;
      status.snapshot = Snapshot{rank, num_ranks, 100 + rank, "host", "", {{"world", num_ranks, all}}, {}};
      ranks_.push_back(std::move(status));
    }
  }

  /// The next collective of a rank. All that came before it are done.
  CallRecord& call(int rank, const std::string& operation, std::uint32_t line, std::vector<std::int64_t> shape = {4},
                   const std::string& dtype = "Float") {
    auto& calls = ranks_[static_cast<std::size_t>(rank)].snapshot->calls;
    if (!calls.empty()) calls.back().state = CallState::kDone;
    CallRecord record;
    record.sequence = calls.size() + 1;
    record.group = "world";
    record.operation = operation;
    record.dtype = operation == "barrier" ? "" : dtype;
    if (operation != "barrier") record.shape = std::move(shape);
    record.file = "train.cpp";
    record.line = line;
    record.started_ns = kStart;
    calls.push_back(record);
    return calls.back();
  }

  /// A rank waits for a message from another one, as a part of a task.
  CallRecord& receive(int rank, int from, const std::string& task) {
    CallRecord& record = call(rank, "recv", 50);
    record.is_collective = false;
    record.group = "pair";
    record.peer = from;
    record.awaited_ns = kStart;
    at(rank).snapshot->task = TaskRecord{task, kStart};
    return record;
  }

  /// The rank returns from its call, into its own code.
  void leave(int rank) {
    at(rank).condition = RankCondition::kRunning;
    at(rank).snapshot->calls.back().state = CallState::kDone;
  }

  RankStatus& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  HangReport report(bool fatal = true) const {
    return analyse("somebody waits", fatal, kStart + 5'000'000'000, static_cast<int>(ranks_.size()), ranks_);
  }

 private:
  static constexpr std::int64_t kStart = 1'000'000'000;
  std::vector<RankStatus> ranks_;
};

inline std::string all_details(const Finding& finding) {
  std::string text;
  for (const auto& detail : finding.details) text += detail + "\n";
  return text;
}

}  // namespace tessera::flight
