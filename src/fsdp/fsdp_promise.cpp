// Gradients that are averaged when their owner says that they are complete.
#include <tessera/intercept/backward_pass.h>

#include <string>
#include <utility>

#include "fsdp/flag.h"
#include "fsdp/fsdp_state.h"
#include "fsdp/memory_recorder.h"

namespace tessera::fsdp {

void FsdpState::promise_gradients() {
  const int rank = ranks_.shards.world_rank();
  shard::require_promise_possible(options_.reproducible(), promise_.has_value(), rank);
  if (notice_ == Notice::kCalls) {
    shard::refuse_promise("a FullySharded block averages by itself, in its turn. Use fully_shard()", rank);
  }
  raise_kept_errors();
  passes_->find_failure();
  if (intercept::in_backward()) shard::refuse_promise_in_backward("promise_gradients()", rank);
  NamedTensors parameters = replicated_;
  std::vector<at::Tensor> trained = replicated_.tensors;
  for (const auto& unit : units_) {
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      parameters.names.push_back(unit->layout().items()[i].name);
      parameters.tensors.push_back(unit->parameters()[i]);
    }
    for (const at::Tensor& tensor : unit->trained()) trained.push_back(tensor);
  }
  promise_.emplace(std::move(parameters), std::move(trained), rank);
  passes_->enter_promise();
}

shard::GradientPromise& FsdpState::promise_for(const char* what) {
  raise_kept_errors();
  passes_->find_failure();
  if (intercept::in_backward()) shard::refuse_promise_in_backward(what, ranks_.shards.world_rank());
  promise_->require_kept();
  return *promise_;
}

void FsdpState::complete_gradients(const std::vector<at::Tensor>& parameters) {
  shard::GradientPromise& promise = promise_for("complete()");
  promise.complete(parameters);
  const Flag busy(busy_);
  gradients_->average_complete(promise);
}

void FsdpState::finish_gradients() {
  shard::GradientPromise& promise = promise_for("finish()");
  promise.complete_rest();
  const Flag busy(busy_);
  // There autograd tells which graphs live.
  intercept::run_backward([&] {
    gradients_->start(/*averages=*/true);
    end_gradients(/*averages=*/true);
  });
  if (const auto recorder = recorder_.lock()) recorder->backward_ended(replicated_);
  passes_->leave_promise();
  promise_.reset();
}

void FsdpState::break_promise() noexcept {
  const Flag busy(busy_);
  passes_->leave_promise();
  promise_.reset();
  try {
    gradients_->abandon();
  } catch (const std::exception&) {  // NOLINT: what went wrong there is said by whoever uses the group next
  }
  for (const auto& unit : units_) {
    for (const at::Tensor& tensor : unit->trained()) tensor.mutable_grad() = at::Tensor();
  }
  for (const at::Tensor& parameter : replicated_.tensors) parameter.mutable_grad() = at::Tensor();
}

}  // namespace tessera::fsdp
