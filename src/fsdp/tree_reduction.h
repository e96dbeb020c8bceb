#pragma once

#include <tessera/shard/gradient_tree.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "fsdp/gradient_reduction.h"

namespace tessera::fsdp {

/// Reproducible mode: averages along one tree over all micro-batches of a step, so that the bits depend neither on the
/// number of ranks nor on which rank holds which shard. A rank has an aligned block of the micro-batches and adds them
/// along its part of the tree. Above that, the ranks' sums are added, each rank adding its own part of the unit.
class TreeReduction : public GradientReduction {
 public:
  /// `micro_batches` of a step over all ranks. Sets this rank's kernels to what the mode needs.
  TreeReduction(const std::vector<std::unique_ptr<Unit>>& units, const NamedTensors& replicated, const UnitRanks& ranks,
                SamePath& path, std::int64_t micro_batches);

  void finish() override;
  void wait() override;
  /// The whole step has to be run again.
  void abandon() override;
  void before_forward() override;
  void set_micro_batch(std::int64_t index) override;

 protected:
  void add(int unit, std::size_t index, const at::Tensor& gradient) override;
  void complete(int unit) override;

 private:
  /// The gradients of a unit, whole, in this pass and in those before it.
  struct Gradients {
    GradientTree tree;
    at::Tensor flat;           // of this pass
    std::vector<bool> came;    // of each parameter: its gradient is in `flat`
    bool contributed = false;  // in this pass
  };
  /// An exchange under way: every rank sends its sum of this rank's part to this rank.
  struct Exchange {
    std::size_t unit;
    at::Tensor sums;  // of this rank, whole
    Work parts;
  };
  /// Parameters of one type that stay whole.
  struct Whole {
    GradientTree tree;
    std::vector<at::Tensor> parameters;
  };

  at::Tensor& flat_of(std::size_t unit);
  void contribute(std::size_t unit);
  void finish_oldest();
  void finish_whole();
  void hand_out(const Whole& whole, const at::Tensor& average) const;

  std::int64_t micro_batches_;
  std::int64_t num_own_;
  std::vector<Gradients> gradients_;  // of each unit
  std::map<at::ScalarType, Whole> whole_;
  std::deque<Exchange> exchanges_;
  std::int64_t next_micro_batch_ = 0;
  std::int64_t num_done_ = 0;  // of this rank's, in this step
};

}  // namespace tessera::fsdp
