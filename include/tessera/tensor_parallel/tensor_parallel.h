#pragma once

#include <tessera/core/options.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/tensor_parallel/tensor_plan.h>

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

namespace tp {
class TensorParallelState;
}  // namespace tp

struct TensorParallelOptions {
  /// Refuse operators that have no rule for tensors that are cut, instead of gathering what they need.
  TORCH_ARG(bool, strict) = false;
  /// At the start every rank takes rank 0's parameters and buffers. Off: they are the same already, and you know it.
  TORCH_ARG(bool, init_sync) = true;
  /// So many tensors that enter cut layers are compared between the ranks of the axis, which must all have the same
  /// batch and draw the same random numbers. 0: none.
  TORCH_ARG(std::int64_t, num_checked_inputs) = 64;

 public:
  static const FieldList<TensorParallelOptions>& fields();
};

/// What the ranks of the axis have sent for one operator.
struct TensorTransfer {
  enum class Kind : std::uint8_t { kAllReduce, kBackwardAllReduce, kAllGather, kBackwardAllGather };
  Kind kind = Kind::kAllReduce;
  std::string op;         ///< "aten::matmul"
  std::string parameter;  ///< whose cut made the tensor act: "blocks.0.mlp.up.weight"
  std::int64_t num_calls = 0;
  std::int64_t num_bytes = 0;  ///< of the tensors that were summed, or that resulted from a gather
  bool has_rule = true;        ///< false: the operator, or these arguments, have none, and all was gathered
};

/// Where a plan communicates.
struct TensorReport {
  std::vector<TensorTransfer> transfers;  ///< the one with the most bytes first

  std::int64_t num_bytes() const;
  std::int64_t num_bytes(TensorTransfer::Kind kind) const;
  /// A table for people; gathers for want of a rule are marked.
  std::string text() const;
};

/// A model whose layers are shared by the ranks of an axis. A parameter that is cut looks as before: its sizes, its
/// norm and what operators compute with it are those of the whole. Its bytes are this rank's part, so code that takes
/// `data_ptr()` is refused. Gradients and optimizer states are cut as their parameters are.
class TensorParallelModel : public ParallelModel {
 public:
  explicit TensorParallelModel(std::shared_ptr<tp::TensorParallelState> state);

  /// What was sent since the last call, or since the start.
  TensorReport report() const;

 private:
  std::shared_ptr<tp::TensorParallelState> state_;
};

/// Cuts layers of a model that was written for one device. The program calls the model as before, with the same batch
/// and the same seed on every rank of the axis, and gets the numbers of one process. It keeps acting as long as its
/// parameters live. Collective: over `ranks`. Throws ConfigError when a pattern matches nothing, a parameter is matched
/// twice, or heads do not divide a weight.
TensorParallelModel tensor_parallel(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                                    const TensorPlan& plan, const TensorParallelOptions& options = {});
template <class Holder>
  requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
TensorParallelModel tensor_parallel(const Holder& model, const Ranks& ranks, const TensorPlan& plan,
                                    const TensorParallelOptions& options = {}) {
  return tensor_parallel(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, plan, options);
}

}  // namespace tessera
