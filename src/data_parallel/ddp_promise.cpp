// Gradients that are averaged when their owner says that they are complete.
#include <tessera/intercept/backward_pass.h>

#include <unordered_map>
#include <utility>

#include "data_parallel/ddp_state.h"

namespace tessera::data_parallel {

class DdpState::WriteListener : public intercept::Listener {
 public:
  explicit WriteListener(std::weak_ptr<DdpState> state) : state_(std::move(state)) {}
  void on_use(const intercept::Use& use) override {
    const auto state = use.writes() ? state_.lock() : nullptr;
    if (state && state->promise_ && !state->is_completing_) state->promise_->note_write();
  }

 private:
  std::weak_ptr<DdpState> state_;
};

void DdpState::promise_gradients() {
  const int rank = comm_.world_rank();
  shard::require_promise_possible(settings_.reproducible, promise_.has_value(), rank);
  if (settings_.static_graph) {
    shard::refuse_promise("with static_graph(true) one backward pass has all gradients", rank);
  }
  if (joining_) shard::refuse_promise("inside join() each backward pass is a step", rank);
  if (intercept::in_backward()) shard::refuse_promise_in_backward("promise_gradients()", rank);
  require_no_backward("promise_gradients()");
  if (passes_->phase() == Phase::kBetween) follow_frozen_parameters();
  if (!trains_the_same()) refuse_changed_flags();
  renew_hooks();
  promise_.emplace(all_parameters_, parameters_.tensors, rank);
  if (!write_listener_) write_listener_ = std::make_shared<WriteListener>(weak_from_this());
  write_watch_ = intercept::Watch(all_parameters_.tensors, write_listener_);
  passes_->enter_promise();
}

void DdpState::complete_gradients(const std::vector<at::Tensor>& parameters) {
  average_promised(promise_for("complete()").complete(parameters), /*is_last=*/false);
}

void DdpState::finish_gradients() {
  average_promised(promise_for("finish()").complete_rest(), /*is_last=*/true);
  end_promise();
}

void DdpState::end_promise() {
  is_completing_ = false;
  write_watch_ = {};
  passes_->leave_promise();
  promise_.reset();
}

shard::GradientPromise& DdpState::promise_for(const char* what) {
  if (intercept::in_backward()) shard::refuse_promise_in_backward(what, comm_.world_rank());
  require_no_backward(what);
  if (!trains_the_same()) refuse_changed_flags();
  promise_->require_kept();
  renew_hooks();
  return *promise_;
}

void DdpState::average_promised(const std::vector<std::size_t>& indices, bool is_last) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    places[parameters_.tensors[i].unsafeGetTensorImpl()] = i;
  }
  std::vector<bool> used(parameters_.tensors.size(), true);
  std::vector<std::size_t> complete;
  for (const std::size_t index : indices) {
    complete.push_back(places.at(all_parameters_.tensors[index].unsafeGetTensorImpl()));
    used[complete.back()] = parameters_.tensors[complete.back()].grad().defined();
  }
  if (complete.empty() && !is_last) return;
  if (!may_lack_) require_all_used(used);
  is_completing_ = true;  // and what the reducer records then looks like a write
  // It asks autograd to call it when the last of its buckets is full.
  intercept::run_backward([&] {
    if (!std::exchange(is_averaging_, true)) {
      sync_->backward_starts(std::vector<bool>(used.size(), true), num_passes_ == 0);
    }
    for (const std::size_t index : complete) sync_->gradient_came(index, /*averages=*/true);
    if (!is_last) return;
    ++statistics_.num_synchronised;
    sync_->backward_ends();
    intercept::at_end_of_backward([this] { after_synchronised_backward(); });
  });
  is_completing_ = false;
}

void DdpState::break_promise() noexcept {
  end_promise();
  try {
    if (is_averaging_) abandon_averages();
  } catch (const std::exception&) {
    must_hook_anew_ = true;  // what went wrong there is said by whoever uses the group next
  }
  for (const at::Tensor& parameter : parameters_.tensors) parameter.mutable_grad() = at::Tensor();
}

}  // namespace tessera::data_parallel
