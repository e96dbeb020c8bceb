#include "recompute/segment.h"

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

namespace tessera::recompute {
namespace {

using intercept::in_backward;

ConfigError changed_input(std::size_t number, const char* when) {
  return ConfigError("input " + std::to_string(number) + " of checkpoint() was changed in place " + when +
                     ": the function could not run again with what it was given. Give it a clone(), or use the form of "
                     "the operator that is not in place");
}

}  // namespace

Segment::Segment(const std::vector<at::Tensor>& inputs, RunAgain run_again)
    : run_again_(std::move(run_again)), autocast_(AutocastState::now()), random_(RandomState::now(inputs)) {
  inputs_.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    const bool defined = input.defined();
    // Detached: the inputs are not to hold the graph before them.
    inputs_.push_back({intercept::SavedByHand(defined ? input.detach() : input), defined && input.requires_grad(),
                       defined ? input._version() : 0});
  }
}

// ---- the first run --------------------------------------------------------------------------------------------------

std::size_t Segment::note(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  saved_.emplace_back(tensor);
  return saved_.size() - 1;
}

void Segment::complete(const std::vector<at::Tensor>& inputs, bool drew) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i]._version() != inputs_[i].version) {
      throw changed_input(i, "by the function");
    }
  }
  is_complete_ = true;
  const std::size_t hash = random_->now().hash();
  if (hash == random_->hash()) {
    random_.reset();
  } else if (drew) {
    random_hash_after_ = hash;
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

at::Tensor Segment::tensor(std::size_t number) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Replayed> replayed = replayed_of_this_pass();
  if (number >= replayed->slots.size() || !replayed->slots[number].tensor.defined()) replay(*replayed);
  Replayed::Slot& slot = replayed->slots[number];
  if (slot.tensor._version() != slot.version) {
    throw ConfigError("the function given to checkpoint() changes a tensor in place that its gradients need: " +
                      saved_[number].text() + ". Use the form of the operator that is not in place");
  }
  // A pass that frees the graph tells when the node is done. One that retains it does not, so the tensor goes at once;
  // if the node asks again it is computed again.
  if (in_backward() && !intercept::keeps_graph()) return slot.tensor;
  return std::exchange(slot.tensor, at::Tensor());
}

std::shared_ptr<Replayed> Segment::replayed_of_this_pass() {
  auto replayed = replayed_.lock();
  if (replayed) return replayed;
  replayed = std::make_shared<Replayed>();
  if (in_backward()) {
    // The pass owns it, whether it succeeds or fails; the call itself has nothing to do.
    intercept::at_end_of_backward([replayed] {});
    replayed_ = replayed;
  }
  return replayed;
}

void Segment::forget(std::size_t number) noexcept {
  const std::lock_guard lock(mutex_);
  saved_[number].is_wanted = false;
  const auto replayed = replayed_.lock();
  if (replayed && number < replayed->slots.size()) replayed->slots[number].tensor.reset();
}

void Segment::replay(Replayed& replayed) {
  // A function that draws goes to its end, to see whether it drew the same.
  Replay replay(saved_, /*may_stop=*/!random_hash_after_, replayed);
  bool stopped = false;
  const RandomScope random(random_);
  try {
    call_again(replay);
  } catch (const Replay::Stop& stop) {
    if (stop.replay != &replay) throw;
    stopped = true;
  }
  require_complete(replay, stopped);
}

void Segment::call_again(Replay& replay) const {
  const std::vector<at::Tensor> inputs = unpacked_inputs();
  const AutocastScope autocast(autocast_);
  const at::AutoGradMode with_gradients(true);
  const intercept::SavedTensorScope scope(replay);
  try {
    run_again_(inputs);
  } catch (const Error&) {
    throw;  // ours say what happened, and their kind tells whether the job can go on
  } catch (c10::Error& error) {
    error.add_context("while the function given to tessera::checkpoint() ran again in backward");
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(ConfigError(
        std::string("the function given to checkpoint() failed when it ran again in backward: ") + error.what()));
  }
}

std::vector<at::Tensor> Segment::unpacked_inputs() const {
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (const Input& input : inputs_) {
    at::Tensor tensor = input.tensor.unpack();
    if (tensor.defined()) {
      if (tensor._version() != input.version) {
        throw changed_input(inputs.size(), "between forward and backward");
      }
      tensor = tensor.detach().set_requires_grad(input.requires_grad);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

void Segment::require_complete(const Replay& replay, bool stopped) const {
  // A function with a backward of its own inside asks before its first run has ended: then there is no end to compare.
  if (stopped || !is_complete_) return;
  if (replay.num_taken() != saved_.size()) {
    throw ConfigError("the function given to checkpoint() did something else when it ran again in backward: it saved " +
                      std::to_string(replay.num_taken()) + " tensors for its gradients, and " +
                      std::to_string(saved_.size()) +
                      " the first time. It must do the same each time: look for what it reads that changed since "
                      "forward");
  }
  if (random_hash_after_ && random_->now().hash() != *random_hash_after_) {
    throw ConfigError(
        "the function given to checkpoint() drew other random numbers when it ran again in backward: another thread "
        "used LibTorch's default generator at the same time. Let one thread at a time use it, or draw the numbers "
        "before checkpoint() and give them to the function");
  }
}

}  // namespace tessera::recompute
