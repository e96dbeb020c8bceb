#pragma once

#include <tessera/comm/communicator.h>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <unordered_set>

#include <tessera/shard/named_tensors.h>
#include "data_parallel/ddp_settings.h"
#include "data_parallel/gradient_sync.h"
#include "data_parallel/hook_adapter.h"

namespace tessera::data_parallel {

/// Averages by `c10d::Reducer`: gradients gather in buckets, and a bucket travels while backward computes the next.
class ReducerSync : public GradientSync {
 public:
  /// Collective: over `comm`.
  ReducerSync(const NamedTensors& parameters, const Communicator& comm, const DdpSettings& settings);

  void backward_starts(const std::vector<bool>& used, bool is_first) override;
  void gradient_came(std::size_t index, bool averages) override;
  void backward_ends() override;
  void gradients_are_final() override;
  void abandon() override { adapter_->abandon(); }
  void shadow_backward() override;
  void set_divisor(int divisor) override { adapter_->set_divisor(divisor); }
  void set_bucket_bytes(std::int64_t bucket_bytes) override;
  std::int64_t bucket_bytes() const override { return settings_.bucket_bytes; }
  Buckets buckets() override;
  void set_buckets(const Buckets& buckets) override;
  Buckets given_buckets() const override { return given_buckets_; }
  void set_micro_batch(std::int64_t index) override;
  void add_to(DdpStatistics& statistics) const override;

 private:
  using Indices = std::vector<std::vector<std::size_t>>;

  Indices buckets_of(std::int64_t bucket_bytes) const;
  void rebuild_buckets();
  void arrange(const Indices& buckets);
  void note_buckets();
  void note_places(const std::vector<c10d::GradBucket>& buckets);
  void divide(std::size_t index);
  void release_views();

  std::vector<at::Tensor> parameters_;
  Communicator comm_;
  DdpSettings settings_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the reducer asks for one
  HookAdapter* adapter_ = nullptr;        // owned by the reducer
  std::size_t num_buckets_ = 0;
  bool divides_ = false;                                // gradients on their way into the buckets
  std::vector<at::Tensor> places_;                      // of each parameter's gradient in a bucket, if so
  std::unordered_set<const c10::TensorImpl*> divided_;  // the parameters whose gradients came in this pass, if so
  Indices new_buckets_;                                 // empty: no change is waiting
  Buckets given_buckets_;
};

}  // namespace tessera::data_parallel
