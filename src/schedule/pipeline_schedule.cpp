#include <tessera/core/error.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "schedule/compute_order.h"

namespace tessera {
namespace {

using schedule::ComputeOrder;
using schedule::Shape;
using Kind = PipelineOperation::Kind;

/// More is a slip of the keyboard, and would take gigabytes and minutes.
constexpr int kMaxRanks = 1024;
constexpr std::int64_t kMaxForwards = std::int64_t{1} << 24;

bool is_v(PipelineScheduleKind kind) { return kind == PipelineScheduleKind::kZeroBubbleV; }

std::vector<int> placement(PipelineScheduleKind kind, const Shape& shape) {
  std::vector<int> rank_of_stage(static_cast<std::size_t>(shape.num_ranks * shape.num_chunks));
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      const int stage = is_v(kind) ? shape.v_stage(rank, chunk) : shape.round_stage(rank, chunk);
      rank_of_stage[static_cast<std::size_t>(stage)] = rank;
    }
  }
  return rank_of_stage;
}

ComputeOrder compute_order(PipelineScheduleKind kind, const Shape& shape, int rank) {
  switch (kind) {
    case PipelineScheduleKind::kSequential:
      return schedule::sequential_order(shape, rank);
    case PipelineScheduleKind::kRoundRobin:
      return schedule::round_robin_order(shape, rank);
    case PipelineScheduleKind::kGPipe:
      return schedule::gpipe_order(shape, rank);
    case PipelineScheduleKind::kOneForwardOneBackward:
      return schedule::one_forward_one_backward_order(shape, rank);
    case PipelineScheduleKind::kInterleaved:
      return schedule::interleaved_order(shape, rank);
    case PipelineScheduleKind::kZeroBubbleH1:
      return schedule::zero_bubble_h1_order(shape, rank);
    case PipelineScheduleKind::kZeroBubbleV:
      return schedule::zero_bubble_v_order(shape, rank);
  }
  throw InternalError("a pipeline schedule of no kind");
}

/// Puts the messages of a rank between its computations: a receive right before what needs it, so that nothing waits
/// too soon, and a send right after what it sends.
class WithMessages {
 public:
  WithMessages(const std::vector<int>& rank_of_stage, int rank) : rank_of_stage_(rank_of_stage), rank_(rank) {}

  std::vector<PipelineOperation> operations(const ComputeOrder& order) {
    for (const PipelineOperation& operation : order) {
      receive_for(operation);
      operations_.push_back(operation);
      send_after(operation);
    }
    return std::move(operations_);
  }

  /// As `operations`, but a rank receives all before it computes, and computes all before it sends: so the stages work
  /// one after the other. The order has all forwards before all backwards.
  std::vector<PipelineOperation> operations_in_blocks(const ComputeOrder& order) {
    const auto middle = std::find_if(order.begin(), order.end(),
                                     [](const PipelineOperation& one) { return one.kind == Kind::kBackward; });
    append_block({order.begin(), middle});
    append_block({middle, order.end()});
    return std::move(operations_);
  }

 private:
  void append_block(const ComputeOrder& block) {
    for (const PipelineOperation& operation : block) receive_for(operation);
    operations_.insert(operations_.end(), block.begin(), block.end());
    for (const PipelineOperation& operation : block) send_after(operation);
  }

  void receive_for(const PipelineOperation& operation) {
    if (operation.kind == Kind::kForward) {
      exchange(Kind::kRecvActivation, operation, -1);
    } else if (operation.kind != Kind::kBackwardWeight) {
      exchange(Kind::kRecvGradient, operation, +1);
    }
  }

  void send_after(const PipelineOperation& operation) {
    if (operation.kind == Kind::kForward) {
      exchange(Kind::kSendActivation, operation, +1);
    } else if (operation.kind != Kind::kBackwardWeight) {
      exchange(Kind::kSendGradient, operation, -1);
    }
  }

  /// A message with the stage so many behind, unless there is none or it is on this rank.
  void exchange(Kind kind, const PipelineOperation& operation, int distance) {
    const int other = operation.stage + distance;
    if (other < 0 || other >= static_cast<int>(rank_of_stage_.size())) return;
    const int peer = rank_of_stage_[static_cast<std::size_t>(other)];
    if (peer != rank_) operations_.push_back({kind, operation.micro_batch, operation.stage, peer});
  }

  const std::vector<int>& rank_of_stage_;
  int rank_;
  std::vector<PipelineOperation> operations_;
};

void add_chunk_fault(PipelineScheduleKind kind, int num_chunks, std::vector<std::string>& faults) {
  const std::string found = std::to_string(num_chunks) + " chunks a rank";
  if (kind == PipelineScheduleKind::kInterleaved) {
    if (num_chunks < 1) faults.push_back(found + ": use 1 or more");
  } else if (num_chunks != default_num_chunks(kind)) {
    faults.push_back(found + ": " + std::string(to_string(kind)) + " has " + std::to_string(default_num_chunks(kind)) +
                     "; leave the number out, or use interleaved");
  }
}

}  // namespace

const std::vector<std::pair<std::string, PipelineScheduleKind>>& pipeline_schedule_names() {
  static const std::vector<std::pair<std::string, PipelineScheduleKind>> names = {
      {"sequential", PipelineScheduleKind::kSequential},
      {"round_robin", PipelineScheduleKind::kRoundRobin},
      {"gpipe", PipelineScheduleKind::kGPipe},
      {"1f1b", PipelineScheduleKind::kOneForwardOneBackward},
      {"interleaved", PipelineScheduleKind::kInterleaved},
      {"zb-h1", PipelineScheduleKind::kZeroBubbleH1},
      {"zb-v", PipelineScheduleKind::kZeroBubbleV},
  };
  return names;
}

std::string_view to_string(PipelineScheduleKind kind) {
  for (const auto& [name, value] : pipeline_schedule_names()) {
    if (value == kind) return name;
  }
  throw InternalError("a pipeline schedule kind without a name");
}

std::optional<PipelineScheduleKind> pipeline_schedule_kind(std::string_view text) {
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    if (name == text) return kind;
  }
  return std::nullopt;
}

std::string_view to_string(PipelineOperation::Kind kind) {
  constexpr std::array<std::string_view, 8> kNames = {"Forward",        "Backward",       "BackwardInput",
                                                      "BackwardWeight", "SendActivation", "RecvActivation",
                                                      "SendGradient",   "RecvGradient"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string to_string(const PipelineOperation& operation) {
  std::string text = std::string(to_string(operation.kind)) + " of micro-batch " +
                     std::to_string(operation.micro_batch) + ", stage " + std::to_string(operation.stage);
  if (operation.is_computation()) return text;
  return text + (operation.is_send() ? ", to rank " : ", from rank ") + std::to_string(operation.peer);
}

PipelineMessage PipelineOperation::message() const {
  switch (kind) {
    case Kind::kSendActivation:
      return {false, micro_batch, stage};
    case Kind::kRecvActivation:
      return {false, micro_batch, stage - 1};
    case Kind::kSendGradient:
      return {true, micro_batch, stage};
    case Kind::kRecvGradient:
      return {true, micro_batch, stage + 1};
    default:
      throw InternalError(to_string(*this) + " is no message");
  }
}

int default_num_chunks(PipelineScheduleKind kind) {
  return kind == PipelineScheduleKind::kInterleaved || is_v(kind) ? 2 : 1;
}

std::vector<std::string> shape_faults(std::optional<PipelineScheduleKind> kind, const PipelineShape& shape) {
  std::vector<std::string> faults;
  if (shape.num_ranks < 1 || shape.num_ranks > kMaxRanks) {
    faults.push_back(std::to_string(shape.num_ranks) + " ranks: use 1 to " + std::to_string(kMaxRanks));
  }
  if (shape.num_micro_batches < 1) {
    faults.push_back(std::to_string(shape.num_micro_batches) + " micro-batches: use 1 or more");
  }
  if (kind && shape.num_chunks) add_chunk_fault(*kind, *shape.num_chunks, faults);
  const std::int64_t num_chunks = shape.num_chunks.value_or(kind ? default_num_chunks(*kind) : 1);
  if (!faults.empty() || num_chunks < 1) return faults;
  const std::int64_t num_stages = std::int64_t{shape.num_ranks} * num_chunks;
  if (num_stages > kMaxForwards / shape.num_micro_batches) {
    faults.push_back(std::to_string(num_stages) + " stages and " + std::to_string(shape.num_micro_batches) +
                     " micro-batches: use fewer; their product may be " + std::to_string(kMaxForwards) + " at most");
  }
  return faults;
}

PipelineSchedule make_pipeline_schedule(PipelineScheduleKind kind, const PipelineShape& shape) {
  if (const auto faults = shape_faults(kind, shape); !faults.empty()) {
    std::string text = "there is no " + std::string(to_string(kind)) + " schedule for this pipeline:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  const Shape whole{shape.num_ranks, shape.num_micro_batches, shape.num_chunks.value_or(default_num_chunks(kind))};
  PipelineSchedule result{whole.num_micro_batches, placement(kind, whole), {}};
  for (int rank = 0; rank < whole.num_ranks; ++rank) {
    const ComputeOrder order = compute_order(kind, whole, rank);
    WithMessages with_messages(result.rank_of_stage, rank);
    result.operations.push_back(kind == PipelineScheduleKind::kSequential ? with_messages.operations_in_blocks(order)
                                                                          : with_messages.operations(order));
  }
  return result;
}

}  // namespace tessera
