#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/gradient_hook.h>
#include <tessera/shard/named_tensors.h>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data_parallel/ddp_settings.h"
#include "data_parallel/gradient_sync.h"

namespace tessera::data_parallel {

/// Adapts a GradientHook to the reducer's hook interface. At the end of backward the reducer waits, bucket by bucket,
/// for the future that the hook returned, and then parses its value. Here the future is ready at once, and parsing
/// waits. So no extra thread is needed.
class HookAdapter : public c10d::CommHookInterface {
 public:
  /// Throws ConfigError when the hook serves another model, or another rank of this process.
  HookAdapter(std::shared_ptr<GradientHook> hook, Communicator comm);
  ~HookAdapter() override;
  HookAdapter(const HookAdapter&) = delete;
  HookAdapter& operator=(const HookAdapter&) = delete;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

  /// The next bucket is the first of a pass. Buckets always arrive in order; the index that the reducer gives them is
  /// wrong in its first pass over a static graph.
  void begin_pass() { next_index_ = 0; }
  /// Starts to reduce a bucket without the reducer, and returns the function that finishes it.
  GradientHook::Finish start(const c10d::GradBucket& bucket);
  /// Waits for reductions that were started and not finished, and ignores their results and errors.
  void abandon() noexcept;
  void set_divisor(int divisor) { divisor_ = divisor; }
  int divisor() const { return divisor_; }
  /// Gradients in the buckets are divided already, if `is_divided` returns true for their parameter. The others, which
  /// the pass does not use but which may hold values of earlier passes, are divided when their bucket starts.
  void expect_divided(std::function<bool(const at::Tensor& parameter)> is_divided) {
    is_divided_ = std::move(is_divided);
  }
  std::vector<at::Tensor> parameters_of(const c10d::GradBucket& bucket, std::size_t index) const;
  /// Sets the parameters of each bucket. Empty: those that the reducer reports, which are wrong once other buckets were
  /// set.
  void set_parameters(std::vector<std::vector<at::Tensor>> parameters) { parameters_ = std::move(parameters); }
  /// Of this pass.
  std::size_t num_started() const { return static_cast<std::size_t>(next_index_); }

 private:
  void divide_the_rest(const c10d::GradBucket& bucket, std::size_t index) const;

  std::shared_ptr<GradientHook> hook_;
  Communicator comm_;
  int divisor_;
  std::function<bool(const at::Tensor& parameter)> is_divided_;  // none: hooks divide
  std::int64_t next_index_ = 0;
  std::vector<std::vector<at::Tensor>> parameters_;
  std::map<std::int64_t, GradientHook::Finish> started_;  // by bucket
};

/// Averages with `c10d::Reducer`: gradients are collected in buckets, and a bucket is reduced while backward computes
/// the next.
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
  /// The reducer sees the model's gradients, and the model those of the reducer: of parameters that hold a part.
  void take_gradient(std::size_t index);
  void take_gradients();
  void give_gradients_back();

  std::vector<at::Tensor> model_parameters_;
  std::vector<at::Tensor> parameters_;  // as the reducer sees them
  Communicator comm_;
  DdpSettings settings_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the reducer needs one
  HookAdapter* adapter_ = nullptr;        // owned by the reducer
  std::size_t num_buckets_ = 0;
  bool divides_ = false;                                // gradients are divided on their way into the buckets
  std::vector<at::Tensor> places_;                      // if so: the place of each parameter's gradient in a bucket
  std::unordered_set<const c10::TensorImpl*> divided_;  // if so: parameters whose gradients were divided in this pass
  Indices new_buckets_;                                 // empty: no change is pending
  Buckets given_buckets_;
};

}  // namespace tessera::data_parallel
