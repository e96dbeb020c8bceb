#pragma once

#include <tessera/data_parallel/distribute.h>

#include <cstddef>
#include <vector>

namespace tessera::data_parallel {

/// How the gradients of a backward pass are averaged. Called on the thread that trains, in this order for each pass.
class GradientSync {
 public:
  using Buckets = DistributedModel::Buckets;

  virtual ~GradientSync() = default;

  /// Called at the first use of a parameter in a forward. Throws ConfigError when its gradients could not be averaged.
  virtual void before_forward() {}
  /// The first gradient of a pass that averages has arrived. `used[i]`: parameter i gets a gradient in this pass.
  /// `is_first`: it is the first of all passes. Collective.
  virtual void backward_starts(const std::vector<bool>& used, bool is_first) = 0;
  /// Parameter `index` has its gradient of this pass. `averages`: the pass averages, so the reduction may begin.
  virtual void gradient_came(std::size_t index, bool averages) = 0;
  /// Called when the pass has computed all gradients. Collective: over the group.
  virtual void backward_ends() = 0;
  /// Called when the gradients are averages, before `backward()` returns to the program.
  virtual void gradients_are_final() = 0;

  /// An exception ended a pass: waits for reductions that are under way. The object must not be used afterwards.
  virtual void abandon() {}

  /// Collective: what a rank without a batch does while the others run a backward.
  virtual void shadow_backward() = 0;
  /// What the sum over the ranks is divided by from now on.
  virtual void set_divisor(int divisor) = 0;

  virtual void set_bucket_bytes(std::int64_t bucket_bytes) = 0;
  /// As DistributedModel's.
  virtual std::int64_t bucket_bytes() const = 0;
  virtual Buckets buckets() = 0;
  virtual void set_buckets(const Buckets& buckets) = 0;
  /// The buckets of set_buckets(); empty if none were set.
  virtual Buckets given_buckets() const { return {}; }
  virtual void set_micro_batch(std::int64_t index) = 0;
  /// Whether it holds gradients of some micro-batches of a step and waits for more.
  virtual bool is_within_step() const { return false; }
  virtual void add_to(DdpStatistics& statistics) const = 0;
};

}  // namespace tessera::data_parallel
