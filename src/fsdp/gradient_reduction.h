#pragma once

#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/gradient_notice.h>
#include <tessera/shard/gradient_promise.h>
#include <tessera/shard/named_tensors.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "fsdp/gather_schedule.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// Notified of gradients as they arrive.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// The gradient of a parameter arrives. The first one begins the pass and calls start(). The returned object lives
  /// while the gradient is processed. Exceptions end the pass.
  virtual std::shared_ptr<void> on_gradient(const at::Tensor& parameter) = 0;
  /// The gradient of a parameter that stays whole, trained or not, was accumulated.
  virtual void on_replicated_gradient(std::size_t index) = 0;
  /// All gradients of a unit that come in this pass are taken.
  virtual void on_unit_complete(int unit) = 0;
};

/// Intercepts gradients before they reach `grad()` and averages them over the ranks, unit by unit, as units complete.
class GradientReduction {
 public:
  /// Requires: `units`, `replicated` and `path` outlive it.
  GradientReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated, UnitRanks ranks,
                    SamePath& path);
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// From now on this object takes the gradients of units before they reach `grad()`. When `listener` is gone they are
  /// dropped.
  /// Requires: the listener owns this object.
  void hook(const std::weak_ptr<GradientListener>& listener);

  /// Parts of tensor parallelism were whole, and what a program did to them, such as torch::load(), may have taken
  /// them away from this object.
  void hook_again(const std::weak_ptr<GradientListener>& listener);

  /// Whether graphs through units live that are not of this backward pass: their backward is still to come, or a tensor
  /// keeps them.
  bool other_graphs_live() const;

  /// A backward pass begins. `averages`: gradients of this and earlier passes are averaged in it.
  void start(bool averages);
  /// The pass is over. Collective.
  virtual void finish();

  /// Averages those units whose parameters have all their promised gradients, if there are any. Collective.
  void average_complete(const shard::GradientPromise& promise);

  /// Waits for the averages that are under way. Collective.
  virtual void wait();

  /// A forward begins. Throws ConfigError when its gradients could not be averaged.
  virtual void before_forward() {}
  /// The next pass is this rank's micro-batch `index`. Throws ConfigError where they have no numbers.
  virtual void set_micro_batch(std::int64_t index);

  /// The pass failed: drops the gradients that have not reached `grad()` yet. Blocks: until averages under way have
  /// ended.
  virtual void abandon();

  std::uint64_t num_reduce_scatters() const { return num_reduce_scatters_; }

 protected:
  virtual void add(int unit, std::size_t index, const at::Tensor& gradient);
  /// All gradients of the unit in this pass were passed to add(). Collective.
  virtual void complete(int unit);

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const UnitRanks& ranks() const { return ranks_; }
  /// The parameters that stay whole and are trained.
  std::vector<at::Tensor> trained_replicated() const;
  void mark_gradients() const;
  void count_reduce_scatter() { ++num_reduce_scatters_; }
  void require_same_path();

 private:
  intercept::GradientNode take_gradients_of(int unit, std::size_t index,
                                            const std::weak_ptr<GradientListener>& listener);
  void take(GradientListener& listener, int unit, std::size_t index, const at::Tensor& gradient);
  void reduce(int unit);
  bool has_room_for(int unit) const;
  void finish_oldest();
  void reduce_replicated();
  void hand_out_slices();

  struct Hooked {
    intercept::GradientNode node;
    int unit;
    std::size_t index;  // in the unit
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
