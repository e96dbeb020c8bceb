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

#include "fsdp/same_path.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// Told of gradients on their way.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// One of a parameter comes: the first of a pass begins it, and calls start(). What it returns lives as long as the
  /// gradient is dealt with. Throws what must stop the pass.
  virtual std::shared_ptr<void> on_gradient(const at::Tensor& parameter) = 0;
  /// The same of a parameter that stays whole, trained or not, when it was added.
  virtual void on_replicated_gradient(std::size_t index) = 0;
  /// All gradients of a unit that come in this pass are taken.
  virtual void on_unit_complete(int unit) = 0;
};

/// Takes gradients on their way to `grad()` and averages them over the ranks, unit by unit, as they complete.
class GradientReduction {
 public:
  /// Requires: `units`, `replicated` and `path` outlive it.
  GradientReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated, UnitRanks ranks,
                    SamePath& path);
  virtual ~GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  /// From now on gradients of units come here instead of to `grad()`; when `listener` is gone they go nowhere.
  /// Requires: the listener owns this object.
  void hook(const std::weak_ptr<GradientListener>& listener);

  /// Whether forwards live whose backward is still to come, or that somebody keeps: of units.
  bool other_graphs_live() const;

  /// A backward pass begins. `averages`: gradients of this and earlier passes are averaged in it.
  void start(bool averages);
  /// The pass is over. Collective.
  virtual void finish();

  /// Averages those units whose parameters have all their promised gradients, if there are any. Collective.
  void average_complete(const shard::GradientPromise& promise);

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
  void take(GradientListener& listener, int unit, std::size_t index, const at::Tensor& gradient);
  void reduce(int unit);
  bool has_room_for(int unit) const;
  void finish_oldest();
  void reduce_replicated();
  void hand_out_slices();

  struct Hooked {
    intercept::GradientNode node;
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
