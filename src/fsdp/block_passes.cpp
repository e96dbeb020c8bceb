// The explicit form of sharding: what FullySharded calls around its block.
#include <tessera/intercept/in_backward.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "fsdp/fsdp_state.h"

namespace tessera::fsdp {

using intercept::in_backward;

void FsdpState::enter_forward() {
  raise_kept_errors();
  // A block that recomputes its activations runs inside backward: nothing is new then.
  if (!in_backward()) {
    // What an earlier forward has kept, for a backward that failed or never came, may be older than the shards.
    if (std::exchange(kept_, false) || held_in_backward_) gathers_->let_go(all_units());
    held_in_backward_ = false;
    if (at::GradMode::is_enabled() && phase_ == Phase::kBetween) begin_forward();
  }
  gathers_->hold(all_units());
  seal(all_units());
}

void FsdpState::leave_forward() {
  try {
    require_sealed(all_units());
  } catch (...) {
    kept_error_ = std::current_exception();
  }
  const bool keeps =
      options_.strategy() == ShardingStrategy::kShardGradOp || options_.strategy() == ShardingStrategy::kZero1;
  if (keeps && at::GradMode::is_enabled() && !in_backward()) {
    kept_ = true;
  } else {
    gathers_->let_go(all_units());
  }
}

void FsdpState::enter_backward() {
  if (std::exchange(held_in_backward_, true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->leave_backward();
  });
  if (!kept_) gathers_->hold(all_units());
}

void FsdpState::leave_backward() {
  held_in_backward_ = false;
  kept_ = false;
  gathers_->let_go(all_units());
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
