#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// The order in which the micro-batches pass through the stages of a pipeline.
enum class PipelineScheduleKind {
  kSequential,             ///< all forwards, then all backwards in reverse; one stage at work at a time
  kRoundRobin,             ///< one micro-batch travels through all stages and back before the next
  kGPipe,                  ///< all forwards, then all backwards, stages at work together
  kOneForwardOneBackward,  ///< "1f1b": a backward as soon as there is one; fewer activations than GPipe
  kInterleaved,            ///< 1f1b with several chunks of layers a rank; a smaller bubble
  kZeroBubbleH1,           ///< "zb-h1": 1f1b whose weight gradients fill most of the bubble
  kZeroBubbleV,            ///< "zb-v": two chunks a rank, laid out as a V; no bubble with micro-batches enough
};

/// Every kind with its text, in the order of the enum: for options, flags and tables.
const std::vector<std::pair<std::string, PipelineScheduleKind>>& pipeline_schedule_names();
std::string_view to_string(PipelineScheduleKind kind);
/// The kind that `text` names; nothing if there is none.
std::optional<PipelineScheduleKind> pipeline_schedule_kind(std::string_view text);

/// How large a pipeline is.
struct PipelineShape {
  int num_ranks = 1;
  int num_micro_batches = 1;
  /// Stages of each rank. Only kInterleaved has a choice. Default: `default_num_chunks(kind)`.
  std::optional<int> num_chunks = std::nullopt;
};

/// Stages that a rank has with this kind if nothing else is asked for: two for kInterleaved and kZeroBubbleV, else one.
int default_num_chunks(PipelineScheduleKind kind);

/// What a message is. A send and the receive that takes it have equal ones.
struct PipelineMessage {
  bool is_gradient = false;
  int micro_batch = 0;
  int from_stage = 0;  ///< the stage that computed it

  bool operator==(const PipelineMessage&) const = default;
};

/// One operation of a rank.
///
/// Messages carry a stage's output to the stage after it, or the gradient of its input to the stage before it. Sends do
/// not wait. A receive holds up the operations behind it in the list until its message is there. Messages have ids:
/// they match by what they are (see PipelineMessage), in whatever order they are sent.
struct PipelineOperation {
  enum class Kind {
    kForward,
    kBackward,        ///< the gradients of the stage's input and of its weights
    kBackwardInput,   ///< of its input alone, which is what the stage before waits for
    kBackwardWeight,  ///< of its weights alone, at any time after kBackwardInput
    kSendActivation,
    kRecvActivation,
    kSendGradient,
    kRecvGradient,
  };

  Kind kind = Kind::kForward;
  int micro_batch = 0;
  /// A stage of the rank whose operation this is. A message is received for this stage, or was computed by it.
  int stage = 0;
  /// The rank at the other end of a message; -1 for computations.
  int peer = -1;

  bool is_send() const { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
  bool is_receive() const { return kind == Kind::kRecvActivation || kind == Kind::kRecvGradient; }
  /// Forward or one of the backwards, which take time of the rank.
  bool is_computation() const { return !is_send() && !is_receive(); }
  /// Requires: a send or a receive.
  PipelineMessage message() const;
  bool operator==(const PipelineOperation&) const = default;
};

/// "Forward", "RecvGradient"
std::string_view to_string(PipelineOperation::Kind kind);
/// "Forward of micro-batch 3, stage 1", "SendActivation of micro-batch 3, stage 1, to rank 2"
std::string to_string(const PipelineOperation& operation);

/// What each rank of a pipeline does for one batch, as data: a runtime executes these lists as they are. Lists of your
/// own are as good as those of `make_pipeline_schedule`; `check_schedule` says whether they can work.
struct PipelineSchedule {
  int num_micro_batches = 0;
  /// The rank of each stage. Stages are consecutive parts of the model; the last one's forward computes the loss.
  std::vector<int> rank_of_stage;
  /// For each rank its operations, in the order of their execution. No messages between stages of the same rank.
  std::vector<std::vector<PipelineOperation>> operations;

  int num_ranks() const { return static_cast<int>(operations.size()); }
  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
};

/// What is wrong with a shape, each fault with its remedy; empty if nothing is. Without a kind only what is wrong with
/// every kind.
std::vector<std::string> shape_faults(std::optional<PipelineScheduleKind> kind, const PipelineShape& shape);

/// The schedule of a kind. Except with kSequential, a stage adds up the gradients of its weights in the order of the
/// micro-batches, as one process does that accumulates them. Any number of micro-batches will do.
/// Throws ConfigError with all faults of the shape.
PipelineSchedule make_pipeline_schedule(PipelineScheduleKind kind, const PipelineShape& shape);

}  // namespace tessera
