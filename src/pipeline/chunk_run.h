#pragma once

#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/operator_call.h>
#include <tessera/intercept/run_point.h>
#include <tessera/intercept/split_product.h>
#include <tessera/intercept/watch.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pipeline/operator_checks.h"
#include "pipeline/stage_model.h"

namespace tessera::pp {

/// The gradients that arrive at values that came from an earlier stage.
class Arrivals {
 public:
  /// A tensor with these bytes whose gradient arrives here.
  at::Tensor enter(const at::Tensor& bytes);
  /// In the order of enter(); undefined where none came.
  std::vector<at::Tensor> take();

 private:
  std::vector<std::shared_ptr<at::Tensor>> gradients_;
};

/// One run of the user's forward for a micro-batch, in which the values of one stage are computed.
class ChunkRun : public intercept::RunWithPoints {
 public:
  using Forward = std::function<at::Tensor()>;

  /// Without bytes: finds what crosses.
  static ForwardPlan plan(StageModel& model, const Forward& forward);

  struct Result {
    /// As in `plan.crossing` of the stage: what the stage after it gets. With their histories.
    std::vector<at::Tensor> outputs;
    at::Tensor loss;  ///< of the last stage
  };
  /// `received`: as in `plan.crossing` of the stage before it. `deferred`: takes the gradients of weights in products;
  /// null: they come with the others. Requires: `model.shared` is there.
  static Result compute(StageModel& model, const ForwardPlan& plan, int stage, const std::vector<at::Tensor>& received,
                        std::shared_ptr<intercept::DeferredGradients> deferred, const Forward& forward);

  /// Of this thread; null outside of a run.
  static ChunkRun* current();
  void call(intercept::OperatorCall& call);

  /// For recompute(), which runs a part of the forward again in backward: what has crossed then crosses no more.
  std::shared_ptr<const intercept::RunPoint> point() const override;

  ChunkRun(const ChunkRun&) = delete;
  ChunkRun& operator=(const ChunkRun&) = delete;

 private:
  class LostGradients;

  static constexpr int kDry = -1;  // no stage's values are computed

  class Point;
  class Resumed;
  using Received = std::unordered_map<std::int64_t, at::Tensor>;  // by value

  ChunkRun(StageModel& model, int stage, std::uint64_t number, const ForwardPlan* plan);
  ~ChunkRun() override;

  at::Tensor run_forward(const Forward& forward);
  std::vector<std::uint32_t> versions_of_buffers() const;
  bool has_all(intercept::OperatorCall& call);
  void compute_here(intercept::OperatorCall& call, const Target& target);
  bool detach_what_is_here(intercept::OperatorCall& call, const Target& target);
  bool answer_equal(intercept::OperatorCall& call, const Target& target);
  void imagine(intercept::OperatorCall& call, const Target& target);
  at::Tensor local_of(const at::Tensor& tensor, const StageData& data, int stage);
  at::Tensor local_parameter(const at::Tensor& tensor, const StageData& data);
  void capture(intercept::OperatorCall& call, int stage);
  at::Tensor value_of(at::Tensor inner, const Target& target, Bytes bytes, c10::intrusive_ptr<Aliases> aliases,
                      at::IntArrayRef sizes, at::IntArrayRef strides);
  at::Tensor ghost_of(const Shape& shape, const Target& target, c10::intrusive_ptr<Aliases> aliases,
                      const intercept::OperatorCall& call);
  c10::intrusive_ptr<torch::autograd::Node> lost_gradients();

  StageModel& model_;
  int stage_;
  std::uint64_t number_;
  OperatorChecks checks_;
  intercept::UseReports no_uses_{false};  // most operators only ask for shapes; those that compute report
  ChunkRun* outer_;
  std::int64_t next_value_ = 0;

  // With those of one stage.
  const ForwardPlan* plan_ = nullptr;
  std::shared_ptr<intercept::DeferredGradients> deferred_;
  c10::intrusive_ptr<torch::autograd::Node> lost_gradients_;
  std::shared_ptr<const Received> received_ = std::make_shared<const Received>();
  struct Captured {
    at::Tensor tensor;
    std::uint32_t version;
  };
  std::unordered_map<std::int64_t, std::optional<Captured>> outputs_;  // that the stage after it gets
};

}  // namespace tessera::pp
