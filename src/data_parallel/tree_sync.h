#pragma once

#include <tessera/comm/communicator.h>

#include <memory>
#include <vector>

#include <tessera/shard/gradient_tree.h>
#include <tessera/shard/named_tensors.h>
#include "data_parallel/ddp_settings.h"
#include "data_parallel/flat_parameters.h"
#include "data_parallel/gradient_sync.h"

namespace tessera::data_parallel {

/// For ranks that have added up their own contributions along a tree: the average over the ranks along the levels
/// above, in the place of the gradients. The number of ranks is a power of two. Throws ConfigError for gradients that
/// travel by a hook. Collective.
void average_along_tree(const Communicator& comm, const std::vector<at::Tensor>& parameters, const std::string& hook);

/// Averages along one tree over all micro-batches of a step, so that the bits do not depend on the number of ranks. A
/// rank has an aligned block of the micro-batches and adds them along its part of the tree; the levels above add the
/// ranks' sums. See docs/guides/reproducible.md.
class TreeSync : public GradientSync {
 public:
  /// Sets the number of threads of this rank's kernels and turns on LibTorch's deterministic algorithms.
  TreeSync(const NamedTensors& parameters, const Communicator& comm, const DdpSettings& settings);

  void before_forward() override;
  void backward_starts(const std::vector<bool>& used, bool is_first) override;
  void gradient_came(std::size_t index, bool averages) override;
  void backward_ends() override;
  void gradients_are_final() override {}
  void abandon() override;
  void shadow_backward() override;
  void set_divisor(int divisor) override;
  void set_bucket_bytes(std::int64_t bucket_bytes) override;
  std::int64_t bucket_bytes() const override { return 0; }
  Buckets buckets() override { return {}; }
  void set_buckets(const Buckets& buckets) override;
  void set_micro_batch(std::int64_t index) override;
  bool is_within_step() const override { return !trees_.front().is_empty(); }
  void add_to(DdpStatistics& statistics) const override;

 private:
  void finish_step();

  Communicator comm_;
  DdpSettings settings_;
  FlatParameters layout_;
  std::vector<GradientTree> trees_;                                   // of each buffer of the layout
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> handed_out_;  // the gradients of the last step
  std::int64_t next_micro_batch_ = 0;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace tessera::data_parallel
