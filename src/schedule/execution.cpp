#include "schedule/execution.h"

#include <algorithm>
#include <cstddef>

namespace tessera::schedule {
namespace {

using Kind = PipelineOperation::Kind;

double cost_of(const std::vector<double>& costs, int stage) {
  return costs.size() == 1 ? costs[0] : costs[static_cast<std::size_t>(stage)];
}

double duration_of(const PipelineOperation& operation, const ScheduleCosts& costs) {
  switch (operation.kind) {
    case Kind::kForward:
      return cost_of(costs.forward(), operation.stage);
    case Kind::kBackward:
      return cost_of(costs.backward_input(), operation.stage) + cost_of(costs.backward_weight(), operation.stage);
    case Kind::kBackwardInput:
      return cost_of(costs.backward_input(), operation.stage);
    case Kind::kBackwardWeight:
      return cost_of(costs.backward_weight(), operation.stage);
    default:
      return 0;
  }
}

/// Numbers the messages of a schedule from 0.
class MessageIndex {
 public:
  explicit MessageIndex(const PipelineSchedule& schedule)
      : num_stages_(static_cast<std::size_t>(schedule.num_stages())),
        num_micro_batches_(static_cast<std::size_t>(schedule.num_micro_batches)) {}

  std::size_t size() const { return 2 * num_stages_ * num_micro_batches_; }
  /// Requires: a stage and a micro-batch of the schedule.
  std::size_t at(const PipelineMessage& message) const {
    const auto stage = static_cast<std::size_t>(message.from_stage) + (message.is_gradient ? num_stages_ : 0);
    return stage * num_micro_batches_ + static_cast<std::size_t>(message.micro_batch);
  }

 private:
  std::size_t num_stages_;
  std::size_t num_micro_batches_;
};

/// Runs a rank until it waits for a message, and again when the message was sent. Each operation is looked at twice at
/// most, whatever the order of the ranks.
class ListExecutor {
 public:
  ListExecutor(const PipelineSchedule& schedule, const ScheduleCosts& costs)
      : schedule_(schedule), costs_(costs), index_(schedule), messages_(index_.size()) {
    execution_.times.resize(schedule.operations.size());
    for (int rank = schedule.num_ranks(); rank-- > 0;) ready_.push_back(rank);
  }

  Execution run() {
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      run_rank(rank);
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (execution_.times[r].size() < schedule_.operations[r].size()) execution_.stuck_ranks.push_back(rank);
    }
    return std::move(execution_);
  }

 private:
  struct InFlight {
    bool is_sent = false;
    double arrival = 0;
    int waiting_rank = -1;
  };

  void run_rank(int rank) {
    auto& times = execution_.times[static_cast<std::size_t>(rank)];
    const auto& operations = schedule_.operations[static_cast<std::size_t>(rank)];
    times.reserve(operations.size());
    while (times.size() < operations.size()) {
      const PipelineOperation& operation = operations[times.size()];
      const double start = times.empty() ? 0 : times.back().end;
      double end = start;
      if (operation.is_receive()) {
        InFlight& message = messages_[index_.at(operation.message())];
        message.waiting_rank = rank;
        if (!message.is_sent) return;
        end = std::max(start, message.arrival);
      } else if (operation.is_send()) {
        send(messages_[index_.at(operation.message())], start);
      } else {
        end = start + duration_of(operation, costs_);
      }
      times.push_back({start, end});
    }
  }

  void send(InFlight& message, double now) {
    message.is_sent = true;
    message.arrival = now + costs_.transfer();
    if (message.waiting_rank >= 0) ready_.push_back(message.waiting_rank);
  }

  const PipelineSchedule& schedule_;
  const ScheduleCosts& costs_;
  MessageIndex index_;
  std::vector<InFlight> messages_;
  std::vector<int> ready_;
  Execution execution_;
};

}  // namespace

Execution execute(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  return ListExecutor(schedule, costs).run();
}

}  // namespace tessera::schedule
