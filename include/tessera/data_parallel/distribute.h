#pragma once

#include <tessera/core/options.h>
#include <tessera/data_parallel/gradient_hook.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct DdpOptions {
  /// The gradients of at least so many bytes travel together. Smaller: more overlap with backward; larger: fewer
  /// messages. `DistributedModel::set_bucket_bytes` changes it while running.
  TORCH_ARG(std::int64_t, bucket_bytes) = std::int64_t{25} << 20;
  /// The size of the bucket that is ready first, smaller so that communication starts early.
  TORCH_ARG(std::int64_t, first_bucket_bytes) = std::int64_t{1} << 20;
  /// Allow parameters that get no gradient in a step, others on each rank. Costs a look at the graph and a small
  /// all-reduce a step. A parameter that no rank used keeps the gradient that it had; in reproducible mode it gets
  /// zeros.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Gradients are views into the buckets: saves their memory and a copy. Off: `grad()` is memory of its own, for code
  /// that keeps it beyond the next step.
  TORCH_ARG(bool, gradient_as_bucket_view) = true;
  /// The graph is the same in every step; then unused parameters and parameters used several times cost nothing more
  /// after the first.
  TORCH_ARG(bool, static_graph) = false;
  /// Reduce only when all gradients are there. Gives up the overlap with backward; for measurements, and for graphs
  /// in which a parameter gets its gradient in several pieces. A parameter without gradient counts as zero.
  TORCH_ARG(bool, delay_all_reduce) = false;
  /// Before each forward that builds a graph, and after each backward that averages, every rank takes rank 0's buffers
  /// (BatchNorm's running statistics, say).
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// At the start every rank takes rank 0's parameters and buffers. Off: they are the same already, and you know it.
  TORCH_ARG(bool, init_sync) = true;
  /// How gradients travel: "none", "fp16", "bf16", "int8" or "powersgd".
  TORCH_ARG(std::string, compression) = "none";
  /// One's own way for gradients to travel. Requires: compression "none".
  TORCH_ARG(std::shared_ptr<GradientHook>, hook) = nullptr;
  /// The same weights, bit for bit, on 1, 2, 4, 8, ... ranks: docs/guides/reproducible.md. Turns on LibTorch's
  /// deterministic algorithms and sets the number of threads, for the process and for good; uses no buckets.
  TORCH_ARG(bool, reproducible) = false;
  /// Only with `reproducible`: the micro-batches of a step over all ranks, a power of two.
  TORCH_ARG(std::int64_t, micro_batches) = 0;
  /// Only with `reproducible`: the threads of each rank, because some kernels' results depend on it.
  TORCH_ARG(std::int64_t, num_threads) = 1;

 public:
  static const FieldList<DdpOptions>& fields();
};

}  // namespace tessera

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

namespace data_parallel {
class DdpState;
}  // namespace data_parallel

/// Training on uneven inputs: made on every rank before the loop, `finish()` after it. A rank whose batches have run
/// out answers the others' calls with zeros until all are done; then every rank takes the weights and buffers of the
/// rank that trained last. The optimizer's state is not copied: it is older on ranks that ran out early.
/// docs/guides/data_parallel.md says what the average means in the meantime.
class [[nodiscard]] Join {
 public:
  Join(std::shared_ptr<data_parallel::DdpState> state, bool divide_by_initial_size);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Collective: over the ranks of the model. Blocks: until the last of them has called it.
  void finish();

 private:
  std::shared_ptr<data_parallel::DdpState> state_;
  int number_;
};

/// What was done with a model's gradients so far, on this rank.
struct DdpStatistics {
  std::uint64_t num_synchronised = 0;    ///< backward passes whose gradients were averaged
  std::uint64_t num_unsynchronised = 0;  ///< backward passes under NoSync
  std::uint64_t num_buckets = 0;         ///< now
  std::uint64_t num_gradient_bytes = 0;  ///< handed to the communicator
  bool buckets_are_zero_copy = false;    ///< they lie in the communicator's memory
};

/// A model whose gradients are averaged over ranks as backward computes them.
class DistributedModel : public ParallelModel {
 public:
  explicit DistributedModel(std::shared_ptr<data_parallel::DdpState> state);

  /// The parameters whose gradients are averaged: those that are trained, each once, in the order of the model's
  /// `named_parameters()`.
  std::vector<std::pair<std::string, at::Tensor>> averaged_parameters() const;
  const Communicator& comm() const;
  GradientHook& hook() const;

  /// `auto join = ddp.join(); for (...) {...} join.finish();` By default the sum is divided by the number of ranks at
  /// the start, so that every sample weighs the same; else by the number of ranks that still have batches.
  /// Collective: over the ranks of the model.
  Join join(bool divide_by_initial_size = true) const;

  /// From the next step on. Call it on every rank between steps.
  void set_bucket_bytes(std::int64_t bucket_bytes) const;
  /// The value that was set; 0 in reproducible mode, which has no buckets.
  std::int64_t bucket_bytes() const;
  /// The parameters of each bucket, as indices into `averaged_parameters()`, in the order in which they lie in the
  /// bucket.
  using Buckets = std::vector<std::vector<std::int64_t>>;
  /// The buckets of the next step's gradients. On three ranks and more, the place of an element in its bucket decides
  /// in which order the ranks' values are added, so a run that resumes from a checkpoint needs the same buckets. Empty
  /// before the first step, in which the order is learnt, and in reproducible mode.
  /// Collective: the first call may rearrange the buckets, as the next backward would. Between steps.
  Buckets buckets() const;
  /// From the next step on, for good: no other order is learnt. Throws ConfigError in reproducible mode, and unless
  /// each parameter is in exactly one bucket, once. Call it on every rank between steps, with the same buckets.
  void set_buckets(const Buckets& buckets) const;
  /// Only with `reproducible`: the next backward is this rank's micro-batch `index` of the step. Needed when the
  /// micro-batches run in another order than 0, 1, 2, ...
  void set_micro_batch(std::int64_t index) const;

  DdpStatistics statistics() const;

  const std::shared_ptr<data_parallel::DdpState>& state() const { return state_; }

 private:
  std::shared_ptr<data_parallel::DdpState> state_;
};

/// Averages the gradients of `model` over `ranks` in every backward pass. The model is not modified: go on calling its
/// own `forward`. Give an optimizer the model's parameters as ever.
/// Collective: over `ranks`. Throws ConfigError, on every rank, when the options differ between ranks, or when the
/// parameters differ in number, name, shape, layout or dtype; the message names the first difference.
[[nodiscard]] DistributedModel distribute(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks,
                                          const DdpOptions& options = {});

/// As above for the holders that TORCH_MODULE makes.
template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
[[nodiscard]] DistributedModel distribute(const Holder& model, const Ranks& ranks, const DdpOptions& options = {}) {
  return distribute(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, options);
}

/// The handle of a model that distribute() shares; nullopt for any other model.
std::optional<DistributedModel> as_distributed(const ParallelModel& model);

}  // namespace tessera
