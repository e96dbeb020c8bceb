#pragma once

#include <tessera/data_parallel/ddp_options.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

namespace data_parallel {
class DdpState;
}  // namespace data_parallel

/// Training on uneven inputs: made on every rank before the loop, `finish()` after it. A rank whose batches have run
/// out answers the others' calls with zeros until all are done; then every rank takes the weights and buffers of the
/// rank that trained last. The state of an optimizer is not passed on: it is older on ranks that ran out early.
/// See docs/guides/data_parallel.md for what the average means meanwhile.
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

/// What a model's gradients did so far, on this rank.
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
  /// the start, so that every sample weighs the same; else by those that still have batches.
  /// Collective: over the ranks of the model.
  Join join(bool divide_by_initial_size = true) const;

  /// From the next step on. Call it on every rank between steps.
  void set_bucket_bytes(std::int64_t bucket_bytes) const;
  /// As asked for; 0 in reproducible mode, which has no buckets.
  std::int64_t bucket_bytes() const;
  /// The parameters of each bucket, by their place in `averaged_parameters()`, in the order in which they lie there.
  using Buckets = std::vector<std::vector<std::int64_t>>;
  /// The buckets in which the next step's gradients travel. Which elements lie where decides, on three ranks and more,
  /// in which order they are added: a run that goes on from a checkpoint needs the same. Empty before the first step,
  /// which teaches the order, and in reproducible mode.
  /// Collective: the first call may arrange them anew, as the next backward would. Between steps.
  Buckets buckets() const;
  /// From the next step on, for good: no other order is learnt. Throws ConfigError in reproducible mode, and unless
  /// each parameter stands in one bucket once. Call it on every rank between steps, with the same buckets.
  void set_buckets(const Buckets& buckets) const;
  /// Only with `reproducible`: the next backward is this rank's micro-batch `index` of the step. Needed when they run
  /// in another order than 0, 1, 2, ...
  void set_micro_batch(std::int64_t index) const;

  DdpStatistics statistics() const;

  const std::shared_ptr<data_parallel::DdpState>& state() const { return state_; }

 private:
  std::shared_ptr<data_parallel::DdpState> state_;
};

/// Averages the gradients of `model` over `ranks` in every backward pass. The model is not modified: go on calling its
/// own `forward`. Give an optimizer the model's parameters as ever.
/// Collective: over `ranks`. Throws ConfigError, on every rank, when the ranks' options differ, or their parameters in
/// number, name, shape, layout or dtype, naming the first.
[[nodiscard]] DistributedModel distribute(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks,
                                          const DdpOptions& options = {});

/// As above for the holders that TORCH_MODULE makes.
template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
[[nodiscard]] DistributedModel distribute(const Holder& model, const Ranks& ranks, const DdpOptions& options = {}) {
  return distribute(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, options);
}

/// The handle of a model that distribute() shares; nothing for any other.
std::optional<DistributedModel> as_distributed(const ParallelModel& model);

}  // namespace tessera
