#pragma once

#include <tessera/intercept/gradient_notice.h>
#include <tessera/shard/named_tensors.h>

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/same_path.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// Takes gradients on their way to `grad()` and averages them over the ranks, unit by unit, as they complete.
class GradientReduction {
 public:
  /// Told of a gradient that comes, before it is taken.
  using OnGradient = std::function<void(int unit, std::size_t index, const at::Tensor& gradient)>;

  /// Requires: `units`, `replicated` and `path` outlive it.
  GradientReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated, UnitRanks ranks,
                    SamePath& path);
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// Told of one that was added to the gradient of a parameter that stays whole, trained or not.
  using OnReplicated = std::function<void(std::size_t index)>;
  /// From now on gradients of units go to `on_gradient` instead of `grad()`, also after this object is gone.
  void hook(const OnGradient& on_gradient, const OnReplicated& on_replicated);

  /// A backward pass begins. `averages`: gradients of this and earlier passes are averaged in it.
  void start(bool averages);
  /// Returns whether the unit's gradients are complete with this one. Collective when they are.
  bool take(int unit, std::size_t index, const at::Tensor& gradient);
  /// The pass is over. Collective.
  virtual void finish();

  /// What is under way is in. Collective.
  virtual void wait();

  /// A forward begins. Throws ConfigError when its gradients could not be taken.
  virtual void before_forward() {}
  /// The next pass is this rank's micro-batch `index`. Throws ConfigError where they have no numbers.
  virtual void set_micro_batch(std::int64_t index);

  /// The pass broke off: what has not come to `grad()` yet is dropped. Blocks: until averages under way have ended.
  virtual void abandon();

  std::uint64_t num_reduce_scatters() const { return num_reduce_scatters_; }

 protected:
  virtual void add(int unit, std::size_t index, const at::Tensor& gradient);
  /// All gradients of the unit in this pass are added. Collective.
  virtual void complete(int unit);

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const UnitRanks& ranks() const { return ranks_; }
  /// Those parameters that stay whole and are trained.
  std::vector<at::Tensor> trained_replicated() const;
  void mark_gradients() const;
  void count_reduce_scatter() { ++num_reduce_scatters_; }
  void require_same_path();

 private:
  void reduce(int unit);
  void finish_oldest();
  void reduce_replicated();
  void hand_out_slices();

  struct Hooked {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    int unit;
  };

  const std::vector<std::unique_ptr<Unit>>& units_;
  const NamedTensors& replicated_;
  UnitRanks ranks_;
  SamePath& path_;
  std::vector<Hooked> hooked_;
  std::vector<intercept::GradientNotice> notices_;  // of parameters that stay whole
  bool averages_ = true;
  std::vector<int> expected_;  // of each unit: gradients still to come in this pass
  std::deque<int> reducing_;   // units whose average is under way
  std::uint64_t num_reduce_scatters_ = 0;
};

}  // namespace tessera::fsdp
