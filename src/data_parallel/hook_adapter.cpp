#include "data_parallel/hook_adapter.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <utility>

#include "data_parallel/bucket_gradients.h"

namespace tessera::data_parallel {

HookAdapter::HookAdapter(std::shared_ptr<GradientHook> hook, Communicator comm)
    : hook_(std::move(hook)), comm_(std::move(comm)), divisor_(comm_.size()) {
  if (hook_->taken_.exchange(true)) {
    throw ConfigError("the gradient hook \"" + hook_->name() + "\" serves a model already (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): make one for each model and, where ranks are threads, for each rank");
  }
}

HookAdapter::~HookAdapter() { hook_->taken_ = false; }

GradientHook::Finish HookAdapter::start(const c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  GradientBucket ours;
  const auto index = static_cast<std::size_t>(next_index_++);
  ours.index = index;
  ours.flat = bucket.getBuffer();
  ours.parameters = parameters_of(bucket, index);
  ours.gradients = gradients_in(ours.flat, ours.parameters);
  for (at::Tensor& gradient : ours.gradients) gradient = as_real(gradient);
  ours.divisor = is_divided_ ? 1 : divisor_;
  return hook_->start(ours, comm_);
}

std::vector<at::Tensor> HookAdapter::parameters_of(const c10d::GradBucket& bucket, std::size_t index) const {
  return index < parameters_.size() ? parameters_[index] : bucket.getParameters();
}

void HookAdapter::divide_the_rest(const c10d::GradBucket& bucket, std::size_t index) const {
  const at::NoGradGuard no_grad;
  const auto parameters = parameters_of(bucket, index);
  const auto gradients = gradients_in(bucket.getBuffer(), parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_divided_(parameters[i])) at::Tensor(gradients[i]).div_(divisor_);
  }
}

void HookAdapter::abandon() noexcept {
  for (const auto& [index, finish] : started_) {
    try {
      finish();
    } catch (...) {  // NOLINT(bugprone-empty-catch): it was in vain anyway
    }
  }
  started_.clear();
}

c10::intrusive_ptr<c10::ivalue::Future> HookAdapter::runHook(c10d::GradBucket& bucket) {
  const std::int64_t index = next_index_;
  if (is_divided_) divide_the_rest(bucket, static_cast<std::size_t>(index));
  started_[index] = start(bucket);
  auto ready = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  ready->markCompleted(c10::IValue(index));
  return ready;
}

at::Tensor HookAdapter::parseHookResult(const c10::IValue& result) {
  const at::NoGradGuard no_grad;
  auto started = started_.extract(result.toInt());
  if (started.empty()) throw InternalError("a bucket of gradients was finished that had not been started");
  return started.mapped()();
}

}  // namespace tessera::data_parallel
