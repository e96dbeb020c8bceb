#pragma once

#include <tessera/core/options.h>
#include <tessera/mesh/ranks.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// When the ranks' gradients are combined; docs/guides/synchronisation.md compares the modes.
enum class SynchronisationMode {
  kSynchronous,       ///< every update holds one gradient of every rank, computed on the weights that it updates
  kBoundedStaleness,  ///< an update may do without slow ranks, whose gradients come at most `max_staleness` later
  kAsynchronous,      ///< as kBoundedStaleness, without a bound
  kLocalSgd,          ///< every rank trains alone; every `period` steps the weights are averaged
};

/// "synchronous", "bounded_staleness", "asynchronous" or "local_sgd"; throws ConfigError for anything else.
SynchronisationMode parse_synchronisation_mode(std::string_view name);
std::string_view to_string(SynchronisationMode mode);

struct SynchroniserOptions {
  /// "synchronous", "bounded_staleness", "asynchronous" or "local_sgd". Leave "synchronous" when the ranks are equally
  /// fast; take "bounded_staleness" when one or another is slow now and then.
  TORCH_ARG(std::string, mode) = "synchronous";
  /// Only with "bounded_staleness": the most updates that a gradient may be behind. 0 is synchronous training. Raise
  /// it until no rank waits; the loss tells when it is too high.
  TORCH_ARG(std::int64_t, max_staleness) = 4;
  /// Only with "local_sgd": steps of a rank between two averagings. Raise it where the network is slow.
  TORCH_ARG(std::int64_t, period) = 16;
  /// Only with "asynchronous": updates that may wait on a rank until its next step, each as large as the parameters.
  /// When so many wait, the other ranks' updates wait as well. Raise it for ranks that differ more in speed.
  TORCH_ARG(std::int64_t, max_queued) = 32;

 public:
  static const FieldList<SynchroniserOptions>& fields();
};

}  // namespace tessera

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

namespace data_parallel {
class Synchronisation;
}  // namespace data_parallel

/// How stale this rank's gradients were when they took effect. `counts[s]` gradients were computed on weights that
/// lacked `s` of the updates before the one that carried them. Measured at each gradient.
struct StalenessHistogram {
  std::vector<std::uint64_t> counts;

  void add(std::uint64_t staleness);
  std::uint64_t total() const;    ///< gradients
  std::uint64_t largest() const;  ///< 0 when there are none
  double mean() const;            ///< 0 when there are none
};

/// Trains one model on many ranks, in step or not:
///
///   tessera::Synchroniser sync(model->parameters(), world,
///                              tessera::SynchroniserOptions().mode("bounded_staleness").max_staleness(4));
///   for (auto& batch : batches) {
///     optimizer.zero_grad();
///     loss(model->forward(batch.data), batch.target).backward();
///     sync.step(optimizer);
///   }
///   sync.finish(optimizer);
///
/// Except for local SGD every rank applies the same updates in the same order, so at equal versions the weights and
/// the optimizer's state are the same, bit for bit. Update u is the sum of the gradients that the ranks gave to it,
/// divided by the number of all ranks: a sample has the same weight as in synchronous training, however many ranks took
/// part. An optimizer that normalises its gradients (Adam) undoes that: give it a lower rate.
///
/// Requires: the same kind of optimizer with the same settings on every rank, for these parameters; settings that
/// change are changed in `before_update`. Ranks may make different numbers of steps.
/// Do not `distribute()` the same model: its gradients would be averaged twice.
/// Thread-safety: one thread, which need not be the one that made it. Except with local SGD, the Synchroniser starts a
/// thread that communicates with the other ranks, in a group of its own.
class Synchroniser {
 public:
  /// Every rank takes rank 0's parameters, including those that require no gradient. Later calls leave the latter out.
  /// Collective: over `ranks`. Throws ConfigError, on every rank, when options or parameters differ between them.
  Synchroniser(const std::vector<at::Tensor>& parameters, const Ranks& ranks, const SynchroniserOptions& options = {});
  /// Without `finish()`, the other ranks are notified that this rank has left, and their next call fails with a
  /// CommError. With local SGD they are not notified, and fail at the communicator's timeout.
  /// Blocks: until they have received the notice, at most for that timeout. Does not throw.
  ~Synchroniser();
  Synchroniser(Synchroniser&&) noexcept;
  Synchroniser& operator=(Synchroniser&&) noexcept;

  /// Gives the parameters' gradients to the next update (an undefined gradient counts as zero), and applies the updates
  /// that have arrived: each is written to `grad()` of the parameters, and `optimizer.step()` is called. So the
  /// optimizer may step several times or not at all. Afterwards `grad()` is scratch: `zero_grad()` before backward.
  /// Local SGD: the optimizer's step, and at the end of a period the average.
  /// Blocks: until the next gradient of this rank is sure to stay within its staleness bound; in synchronous mode,
  /// until the gradients of all ranks have arrived. Throws CommError when another rank failed or left.
  void step(torch::optim::Optimizer& optimizer);

  /// This rank has no more gradients. Serves the other ranks until all have called finish(), and applies the remaining
  /// updates; then all ranks are at the same version with the same weights. A rank that finished early contributes
  /// nothing more; with local SGD its weights count in the averages that follow. A second call does nothing.
  /// Collective: over the ranks. Blocks: until the last of them has called it.
  void finish(torch::optim::Optimizer& optimizer);

  /// Called before each `optimizer.step()` for an update, with the update's number, when the gradients are those of the
  /// update: the place to set the learning rate and to clip. Must do the same on every rank. With local SGD the
  /// number is that of this rank's own step.
  void before_update(std::function<void(std::uint64_t update)> callback);

  /// Updates that this rank has applied; with local SGD, averages.
  std::uint64_t version() const;
  /// Empty with local SGD.
  StalenessHistogram staleness() const;
  SynchronisationMode mode() const;

 private:
  SynchronisationMode mode_;
  bool finished_ = false;
  std::unique_ptr<data_parallel::Synchronisation> synchronisation_;
};

}  // namespace tessera
