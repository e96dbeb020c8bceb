#pragma once

#include <tessera/data_parallel/synchroniser_options.h>
#include <tessera/mesh/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

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
/// divided by the number of all ranks: a sample weighs what it weighs in synchronous training, however many ranks took
/// part. An optimizer that looks at the size of its gradients (Adam) undoes that: give it a lower rate.
///
/// Requires: the same kind of optimizer with the same settings on every rank, for these parameters; settings that
/// change are changed in `before_update`. Ranks may make different numbers of steps.
/// Do not `distribute()` the same model: its gradients would be averaged twice.
/// Thread-safety: one thread, which need not be the one that made it. Except with local SGD a thread of its own talks
/// to the other ranks, in a group of its own.
class Synchroniser {
 public:
  /// Every rank takes rank 0's parameters. Those that require no gradient are left out, but for this.
  /// Collective: over `ranks`. Throws ConfigError, on every rank, when options or parameters differ between them.
  Synchroniser(const std::vector<at::Tensor>& parameters, const Ranks& ranks, const SynchroniserOptions& options = {});
  /// Without `finish()` the others are told that this rank has left, and their next call fails with a CommError (with
  /// local SGD nothing is told, and they fail at the communicator's timeout).
  /// Blocks: until they have heard it, that timeout at most. Does not throw.
  ~Synchroniser();
  Synchroniser(Synchroniser&&) noexcept;
  Synchroniser& operator=(Synchroniser&&) noexcept;

  /// Gives the parameters' gradients to the next update (an undefined gradient counts as zero), and applies the updates
  /// that are there: for each, `grad()` of every parameter takes its values and `optimizer.step()` is called. So the
  /// optimizer may step several times or not at all. Afterwards `grad()` is scratch: `zero_grad()` before backward.
  /// Local SGD: the optimizer's step, and at the end of a period the average.
  /// Blocks: until the next gradient of this rank cannot come too late for its bound; in synchronous mode, until all
  /// ranks' gradients are in. Throws CommError when another rank failed or left.
  void step(torch::optim::Optimizer& optimizer);

  /// This rank has no more gradients. Serves the other ranks until all have called it, and applies what is left; then
  /// all ranks are at the same version with the same weights. A rank that finished early contributes nothing more;
  /// with local SGD its weights count in the averages that follow. A second call does nothing.
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
