#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/gradient_hook.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::data_parallel {

/// A hook of ours as one of the reducer's. The reducer waits for the future that a hook returns and then parses its
/// value, bucket by bucket at the end of backward: the future is ready at once, and parsing is what waits. So nothing
/// has to run on a thread of its own.
class HookAdapter : public c10d::CommHookInterface {
 public:
  /// Throws ConfigError when the hook serves another model, or another rank of this process.
  HookAdapter(std::shared_ptr<GradientHook> hook, Communicator comm);
  ~HookAdapter() override;
  HookAdapter(const HookAdapter&) = delete;
  HookAdapter& operator=(const HookAdapter&) = delete;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

  /// The next bucket to come is the first of a pass. Buckets always come in order; the number that the reducer gives
  /// them is wrong in its first pass over a static graph.
  void begin_pass() { next_index_ = 0; }
  /// Reduces a bucket without a reducer behind it, up to the last step.
  GradientHook::Finish start(const c10d::GradBucket& bucket);
  /// Waits for what was started and not finished, whatever becomes of it.
  void abandon() noexcept;
  void set_divisor(int divisor) { divisor_ = divisor; }
  int divisor() const { return divisor_; }
  /// The gradients in the buckets are divided already, but for parameters of which `is_divided` says otherwise: those
  /// that the pass does not use may hold what earlier passes left, and are divided when their bucket starts.
  void expect_divided(std::function<bool(const at::Tensor& parameter)> is_divided) {
    is_divided_ = std::move(is_divided);
  }
  std::vector<at::Tensor> parameters_of(const c10d::GradBucket& bucket, std::size_t index) const;
  /// What each bucket holds from now on. Empty: what the reducer says, which is wrong once it was given other buckets.
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

}  // namespace tessera::data_parallel
