// The explicit form of sharding: what FullySharded calls around its block.
#include <tessera/intercept/backward_pass.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "fsdp/flag.h"
#include "fsdp/fsdp_state.h"

namespace tessera::fsdp {

using intercept::in_backward;

void FsdpState::enter_forward() {
  raise_kept_errors();
  const Flag busy(busy_);
  // A block that recomputes its activations runs inside backward: nothing is new then.
  if (!in_backward()) {
    passes_->find_failure();
    could_step_ = std::exchange(may_step_, false);
    watch_shards();
    settle_gradients();
    // What an earlier forward has kept, for a backward that failed or never came, may be older than the shards.
    if (kept_ || held_in_backward_) {
      let_go_of_block();
    }
    for (const auto& unit : units_) unit->require_unchanged();
    if (at::GradMode::is_enabled() && passes_->phase() == Phase::kBetween) begin_forward();
  }
  gathers_->hold(all_units());
  seal(all_units());
}

void FsdpState::leave_forward() {
  const Flag busy(busy_);
  try {
    require_sealed(all_units());
  } catch (...) {
    kept_error_ = std::current_exception();
  }
  const bool keeps =
      options_.strategy() == ShardingStrategy::kShardGradOp || options_.strategy() == ShardingStrategy::kZero1;
  if (keeps && at::GradMode::is_enabled() && !in_backward()) {
    kept_ = true;
    seal(all_units());
  } else {
    gathers_->let_go(all_units());
    if (num_wholes_ > 0) seal(all_units());
  }
  if (in_backward()) return;
  // After an evaluation as before it. With a graph backward comes next, as a rule; but who has gradients may step.
  may_step_ = at::GradMode::is_enabled() ? has_gradients() : could_step_;
  watch_shards();
}

bool FsdpState::has_gradients() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    const auto trained = unit->trained();
    return std::any_of(trained.begin(), trained.end(),
                       [](const at::Tensor& tensor) { return tensor.grad().defined(); });
  });
}

void FsdpState::enter_backward() {
  if (std::exchange(held_in_backward_, true)) return;
  const Flag busy(busy_);
  may_step_ = false;
  watch_shards();
  intercept::at_end_of_backward([weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->leave_backward();
  });
  if (kept_) return;
  gathers_->hold(all_units());
  seal(all_units());
}

void FsdpState::leave_backward() {
  // An optimizer comes next, which writes to shards. To listen costs nothing while the model computes.
  may_step_ = true;
  watch_shards();
  let_go_of_block();
}

void FsdpState::let_go_of_block() {
  const Flag busy(busy_);
  kept_ = false;
  held_in_backward_ = false;
  std::exception_ptr error;
  try {
    require_sealed(all_units());
  } catch (...) {
    error = std::current_exception();
  }
  gathers_->let_go(all_units());
  if (num_wholes_ > 0) seal(all_units());
  if (error) std::rethrow_exception(error);
}

void FsdpState::on_block_gradients(int unit) {
  gathers_->done_with(unit);
  // Averages hold a unit's gradients each: those of the block before this one are in by now, or waited for.
  auto& open = turns_->open;
  std::erase_if(open, [this](const auto& weak) { return weak.expired() || weak.lock().get() == this; });
  open.push_back(weak_from_this());
  for (; open.size() > 1; open.pop_front()) {
    if (const auto before = open.front().lock()) before->gradients_->wait();
  }
}

}  // namespace tessera::fsdp
