#include <tessera/schedule/check_schedule.h>

#include <algorithm>
#include <array>

#include "schedule/execution.h"

namespace tessera {
namespace {

using Kind = PipelineOperation::Kind;

constexpr int kNowhere = -1;

/// For one micro-batch in one stage: where in the list of the stage's rank each kind of operation is.
using Positions = std::array<int, 8>;

int position_of(const Positions& positions, Kind kind) { return positions.at(static_cast<std::size_t>(kind)); }

/// What comes first, and what must come after it in the same list. A pair of which one is missing says nothing.
constexpr std::array<std::pair<Kind, Kind>, 9> kOrder = {{
    {Kind::kRecvActivation, Kind::kForward},
    {Kind::kForward, Kind::kSendActivation},
    {Kind::kForward, Kind::kBackward},
    {Kind::kForward, Kind::kBackwardInput},
    {Kind::kRecvGradient, Kind::kBackward},
    {Kind::kRecvGradient, Kind::kBackwardInput},
    {Kind::kBackwardInput, Kind::kBackwardWeight},
    {Kind::kBackward, Kind::kSendGradient},
    {Kind::kBackwardInput, Kind::kSendGradient},
}};

class Checker {
 public:
  explicit Checker(const PipelineSchedule& schedule) : schedule_(schedule) {}

  ScheduleCheck run() {
    check_placement();
    // Positions are kept for each stage; without a placement there are none.
    if (result_.faults.empty()) {
      positions_.assign(
          static_cast<std::size_t>(schedule_.num_stages()) * static_cast<std::size_t>(schedule_.num_micro_batches),
          filled(kNowhere));
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) find_operations(rank);
      for (int stage = 0; stage < schedule_.num_stages(); ++stage) check_stage(stage);
    }
    // A rank that waits for a message that nobody sends is stuck too, and is reported already.
    if (result_.faults.empty()) check_progress();
    if (result_.faults.empty()) count_activations();
    return std::move(result_);
  }

 private:
  static Positions filled(int value) {
    Positions positions{};
    positions.fill(value);
    return positions;
  }

  Positions& positions(int stage, int micro_batch) {
    return positions_[static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.num_micro_batches) +
                      static_cast<std::size_t>(micro_batch)];
  }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }

  void fault(const std::string& text) { result_.faults.push_back(text); }
  static std::string place(int rank, int position, const PipelineOperation& operation) {
    return "rank " + std::to_string(rank) + ", operation " + std::to_string(position) + " (" + to_string(operation) +
           ")";
  }

  void check_placement() {
    const std::vector<int>& ranks = schedule_.rank_of_stage;
    if (schedule_.operations.empty()) fault("the schedule has no lists: give one for each rank");
    if (schedule_.num_micro_batches < 1) {
      fault("the schedule has " + std::to_string(schedule_.num_micro_batches) + " micro-batches: use 1 or more");
    }
    for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
      if (ranks[stage] < 0 || ranks[stage] >= schedule_.num_ranks()) {
        fault("stage " + std::to_string(stage) + " is on rank " + std::to_string(ranks[stage]) + ", and there are " +
              std::to_string(schedule_.num_ranks()) + " lists: place it on one of these ranks");
      }
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
        fault("rank " + std::to_string(rank) + " has no stage: place one there, or use fewer ranks");
      }
    }
  }

  /// Takes down where the operations of a rank are. Those that the rank should not have are faults.
  void find_operations(int rank) {
    const auto& operations = schedule_.operations[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const PipelineOperation& operation = operations[i];
      const auto position = static_cast<int>(i);
      if (const std::string why = why_not(rank, operation); !why.empty()) {
        fault(place(rank, position, operation) + ": " + why);
        continue;
      }
      int& known = positions(operation.stage, operation.micro_batch).at(static_cast<std::size_t>(operation.kind));
      if (known == kNowhere) {
        known = position;
      } else {
        fault(place(rank, position, operation) + " is operation " + std::to_string(known) + " again: remove one");
      }
    }
  }

  /// Why a rank may not have an operation; empty if it may.
  std::string why_not(int rank, const PipelineOperation& operation) const {
    if (operation.micro_batch < 0 || operation.micro_batch >= schedule_.num_micro_batches) {
      return "there are " + std::to_string(schedule_.num_micro_batches) + " micro-batches, counted from 0";
    }
    if (operation.stage < 0 || operation.stage >= schedule_.num_stages()) {
      return "there are " + std::to_string(schedule_.num_stages()) + " stages, counted from 0";
    }
    if (rank_of(operation.stage) != rank) {
      return "the stage is on rank " + std::to_string(rank_of(operation.stage)) + ": move the operation there";
    }
    if (operation.is_computation()) {
      return operation.peer == -1 ? "" : "a computation has no peer: leave it at -1";
    }
    const std::optional<int> peer = peer_of(operation);
    if (!peer) return "there is no stage to talk to: remove it";
    if (*peer == rank) return "the other stage is on this rank, where no message is needed: remove it";
    if (*peer != operation.peer) return "the other stage is on rank " + std::to_string(*peer) + ": make that the peer";
    return "";
  }

  /// The rank of the stage at the other end of a message; nothing if there is no such stage.
  std::optional<int> peer_of(const PipelineOperation& operation) const {
    const bool looks_back = operation.kind == Kind::kRecvActivation || operation.kind == Kind::kSendGradient;
    const int stage = operation.stage + (looks_back ? -1 : 1);
    if (stage < 0 || stage >= schedule_.num_stages()) return std::nullopt;
    return rank_of(stage);
  }

  void check_stage(int stage) {
    for (int micro_batch = 0; micro_batch < schedule_.num_micro_batches; ++micro_batch) {
      check_computations(stage, micro_batch);
      for (const Kind kind : {Kind::kRecvActivation, Kind::kSendActivation, Kind::kRecvGradient, Kind::kSendGradient}) {
        check_message({kind, micro_batch, stage});
      }
      check_order(stage, micro_batch);
    }
  }

  bool has(int stage, int micro_batch, Kind kind) {
    return position_of(positions(stage, micro_batch), kind) != kNowhere;
  }

  void lacks(const PipelineOperation& operation, const std::string& why) {
    fault("rank " + std::to_string(rank_of(operation.stage)) + " lacks " + to_string(operation) + ": " + why);
  }

  void check_computations(int stage, int micro_batch) {
    const auto here = [&](Kind kind) { return has(stage, micro_batch, kind); };
    if (!here(Kind::kForward)) lacks({Kind::kForward, micro_batch, stage}, "add it");
    const bool is_split = here(Kind::kBackwardInput) || here(Kind::kBackwardWeight);
    if (!is_split && !here(Kind::kBackward)) {
      lacks({Kind::kBackward, micro_batch, stage}, "add it, or BackwardInput and BackwardWeight");
    }
    if (!is_split) return;
    for (const Kind kind : {Kind::kBackwardInput, Kind::kBackwardWeight}) {
      const PipelineOperation operation{kind, micro_batch, stage};
      if (here(Kind::kBackward) && here(kind)) {
        fault(place(rank_of(stage), position_of(positions(stage, micro_batch), kind), operation) +
              ": the rank has a whole Backward of it too: remove one of the two");
      } else if (!here(Kind::kBackward) && !here(kind)) {
        lacks(operation, "add it; the other half of the backward is there");
      }
    }
  }

  /// Each end of a message is needed where the neighbouring stage is on another rank; find_operations() has seen that
  /// there are no others, and no wrong peers. So if none is missing, sends and receives are pairs.
  void check_message(PipelineOperation operation) {
    const std::optional<int> peer = peer_of(operation);
    if (!peer || *peer == rank_of(operation.stage) || has(operation.stage, operation.micro_batch, operation.kind)) {
      return;
    }
    operation.peer = *peer;
    const PipelineOperation other = other_end(operation);
    const int position = position_of(positions(other.stage, other.micro_batch), other.kind);
    if (position == kNowhere) {
      lacks(operation, "add it");
    } else {
      lacks(operation, place(*peer, position, other) + " has no match without it");
    }
  }

  PipelineOperation other_end(const PipelineOperation& operation) const {
    const int rank = rank_of(operation.stage);
    switch (operation.kind) {
      case Kind::kSendActivation:
        return {Kind::kRecvActivation, operation.micro_batch, operation.stage + 1, rank};
      case Kind::kRecvActivation:
        return {Kind::kSendActivation, operation.micro_batch, operation.stage - 1, rank};
      case Kind::kSendGradient:
        return {Kind::kRecvGradient, operation.micro_batch, operation.stage - 1, rank};
      default:
        return {Kind::kSendGradient, operation.micro_batch, operation.stage + 1, rank};
    }
  }

  void check_order(int stage, int micro_batch) {
    for (const auto& [first, second] : kOrder) {
      expect_order({first, micro_batch, stage}, {second, micro_batch, stage});
    }
    if (stage + 1 == schedule_.num_stages() || rank_of(stage + 1) != rank_of(stage)) return;
    // Two stages of the same rank hand over without messages.
    expect_order({Kind::kForward, micro_batch, stage}, {Kind::kForward, micro_batch, stage + 1});
    for (const Kind giver : {Kind::kBackward, Kind::kBackwardInput}) {
      for (const Kind taker : {Kind::kBackward, Kind::kBackwardInput}) {
        expect_order({giver, micro_batch, stage + 1}, {taker, micro_batch, stage});
      }
    }
  }

  void expect_order(const PipelineOperation& first, const PipelineOperation& second) {
    const int before = position_of(positions(first.stage, first.micro_batch), first.kind);
    const int after = position_of(positions(second.stage, second.micro_batch), second.kind);
    if (before == kNowhere || after == kNowhere || before < after) return;
    const int rank = rank_of(first.stage);
    // Of a message the peer is known by now.
    const auto& operations = schedule_.operations[static_cast<std::size_t>(rank)];
    fault(place(rank, after, operations[static_cast<std::size_t>(after)]) + " comes before operation " +
          std::to_string(before) + " (" + to_string(operations[static_cast<std::size_t>(before)]) +
          "), which it needs: move it behind");
  }

  void check_progress() {
    const schedule::Execution execution = schedule::execute(schedule_, ScheduleCosts());
    for (const int rank : execution.stuck_ranks) {
      const auto r = static_cast<std::size_t>(rank);
      const std::size_t position = execution.times[r].size();
      const PipelineOperation& operation = schedule_.operations[r][position];
      const PipelineOperation send = other_end(operation);
      const int send_position = position_of(positions(send.stage, send.micro_batch), send.kind);
      fault("deadlock: " + place(rank, static_cast<int>(position), operation) + " waits for ever: rank " +
            std::to_string(operation.peer) + " sends it in its operation " + std::to_string(send_position) +
            ", and is stuck in operation " +
            std::to_string(execution.times[static_cast<std::size_t>(operation.peer)].size()));
    }
  }

  void count_activations() {
    for (const auto& operations : schedule_.operations) {
      PeakActivations live;
      PeakActivations peak;
      for (const PipelineOperation& operation : operations) {
        const bool gives_input = operation.kind == Kind::kBackward || operation.kind == Kind::kBackwardInput;
        const bool gives_weight = operation.kind == Kind::kBackward || operation.kind == Kind::kBackwardWeight;
        live.until_input += operation.kind == Kind::kForward ? 1 : gives_input ? -1 : 0;
        live.until_weight += operation.kind == Kind::kForward ? 1 : gives_weight ? -1 : 0;
        peak.until_input = std::max(peak.until_input, live.until_input);
        peak.until_weight = std::max(peak.until_weight, live.until_weight);
      }
      result_.peaks.push_back(peak);
    }
  }

  const PipelineSchedule& schedule_;
  std::vector<Positions> positions_;
  ScheduleCheck result_;
};

}  // namespace

ScheduleCheck check_schedule(const PipelineSchedule& schedule) { return Checker(schedule).run(); }

}  // namespace tessera
