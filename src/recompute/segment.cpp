#include "recompute/segment.h"

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/random_draws.h>
#include <tessera/intercept/saved_tensors.h>
#include <tessera/recompute/recompute.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace tessera::recomputation {
namespace {

/// Keeps the tensor as autograd would, since the function may run a backward inside.
class ReplaySlot : public intercept::SavedTensorSlot {
 public:
  explicit ReplaySlot(Replay& replay) : replay_(replay) {}

  void pack(const at::Tensor& tensor) override {
    tensor_ = tensor.tensor_data();  // without its node, which owns this slot
    replay_.take(tensor);
  }
  at::Tensor unpack() override { return tensor_; }

 private:
  Replay& replay_;
  at::Tensor tensor_;
};

}  // namespace

Replay::Replay(const std::vector<SavedTensor>& expected, bool may_stop, Replayed& replayed)
    : expected_(expected), replayed_(replayed), may_stop_(may_stop) {
  replayed_.slots.resize(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].is_wanted) last_wanted_ = i;
  }
}

std::unique_ptr<intercept::SavedTensorSlot> Replay::make_slot() {
  if (stopped_) return nullptr;  // the function caught Stop and goes on: let it
  return std::make_unique<ReplaySlot>(*this);
}

void Replay::take(const at::Tensor& tensor) {
  const std::size_t number = num_taken_++;
  if (number >= expected_.size()) return;
  const SavedTensor& expected = expected_[number];
  const SavedTensor again(tensor);
  expected.require_same(again, number);
  if (expected.is_wanted) replayed_.slots[number] = {tensor.tensor_data(), again.version};
  if (may_stop_ && number == last_wanted_) {
    stopped_ = true;
    throw Stop{this};
  }
}

SavedTensor::SavedTensor(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      dtype(tensor.scalar_type()),
      device(tensor.device()),
      requires_grad(tensor.requires_grad()),
      version(tensor._version()) {}

std::string SavedTensor::text() const {
  std::ostringstream text;
  text << c10::toString(dtype) << ' ' << at::IntArrayRef(sizes) << " on " << device;
  return text.str();
}

void SavedTensor::require_same(const SavedTensor& again, std::size_t number) const {
  if (sizes != again.sizes || dtype != again.dtype || device != again.device) {
    throw ConfigError("the function given to recompute() did something else when it ran again in backward: tensor " +
                      std::to_string(number) + " of those it saves for its gradients was " + text() + ", and is now " +
                      again.text() +
                      ". It must do the same each time: look for what it reads that changed since forward");
  }
  // Statistics that a forward updates, as BatchNorm's, require no gradient and may change.
  if (requires_grad && version != again.version) {
    throw ConfigError(
        "a tensor that the function given to recompute() uses was changed in place between forward and "
        "backward: " +
        text() +
        ". What backward would compute again is no longer what forward computed: run backward before the "
        "optimizer's step");
  }
}

namespace {

using intercept::in_backward;

ConfigError changed_input(std::size_t number, const char* when) {
  return ConfigError("input " + std::to_string(number) + " of recompute() was changed in place " + when +
                     ": the function could not run again with what it was given. Give it a clone(), or use the form of "
                     "the operator that is not in place");
}

}  // namespace

Segment::Segment(const std::vector<at::Tensor>& inputs, RunAgain run_again)
    : point_(intercept::current_run_point()),
      run_again_(std::move(run_again)),
      autocast_(AutocastState::now()),
      random_(RandomState::now(inputs)) {
  inputs_.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    const bool defined = input.defined();
    // Detached, so that the inputs do not keep the graph before them alive.
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
  const std::uint64_t digest = random_->now().digest();
  if (digest == random_->digest()) {
    random_.reset();
  } else if (drew) {
    random_digest_after_ = digest;
  }
}

// ---- backward -------------------------------------------------------------------------------------------------------

at::Tensor Segment::tensor(std::size_t number) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Replayed> replayed = replayed_of_this_pass();
  if (number >= replayed->slots.size() || !replayed->slots[number].tensor.defined()) replay(*replayed);
  Replayed::Slot& slot = replayed->slots[number];
  if (slot.tensor._version() != slot.version) {
    throw ConfigError("the function given to recompute() changes a tensor in place that its gradients need: " +
                      saved_[number].text() + ". Use the form of the operator that is not in place");
  }
  // A pass that frees the graph calls forget() when the node is done. A pass that retains the graph does not, so the
  // tensor is released at once; if the node asks for it again, it is computed again.
  if (in_backward() && !intercept::keeps_graph()) return slot.tensor;
  return std::exchange(slot.tensor, at::Tensor());
}

std::shared_ptr<Replayed> Segment::replayed_of_this_pass() {
  auto replayed = replayed_.lock();
  if (replayed) return replayed;
  replayed = std::make_shared<Replayed>();
  if (in_backward()) {
    // The callback keeps `replayed` alive until the pass succeeds or fails; it does nothing else.
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
  // A function that draws random numbers runs to its end, to check that it drew the same ones.
  Replay replay(saved_, /*may_stop=*/!random_digest_after_, replayed);
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
  const auto resumed = point_ ? point_->resume() : nullptr;
  const std::vector<at::Tensor> inputs = unpacked_inputs();
  const AutocastScope autocast(autocast_);
  const at::AutoGradMode with_gradients(true);
  const intercept::SavedTensorScope scope(replay);
  try {
    run_again_(inputs);
  } catch (const Error&) {
    throw;  // errors of Tessera say what happened, and their type says whether the job can go on
  } catch (c10::Error& error) {
    error.add_context("while the function given to tessera::recompute() ran again in backward");
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(ConfigError(
        std::string("the function given to recompute() failed when it ran again in backward: ") + error.what()));
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
  // A function that runs a backward inside asks before its first run has ended; then there is no end to compare.
  if (stopped || !is_complete_) return;
  if (replay.num_taken() != saved_.size()) {
    throw ConfigError("the function given to recompute() did something else when it ran again in backward: it saved " +
                      std::to_string(replay.num_taken()) + " tensors for its gradients, and " +
                      std::to_string(saved_.size()) +
                      " the first time. It must do the same each time: look for what it reads that changed since "
                      "forward");
  }
  if (random_digest_after_ && random_->now().digest() != *random_digest_after_) {
    throw ConfigError(
        "the function given to recompute() drew other random numbers when it ran again in backward: another thread "
        "used LibTorch's default generator at the same time. Let one thread at a time use it, or draw the numbers "
        "before recompute() and give them to the function");
  }
}

namespace {

/// Stands for a tensor that a node of the first run saved.
class Dropped : public intercept::SavedTensorSlot {
 public:
  explicit Dropped(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  ~Dropped() override {
    if (number_) segment_->forget(*number_);
  }
  Dropped(const Dropped&) = delete;
  Dropped& operator=(const Dropped&) = delete;

  void pack(const at::Tensor& tensor) override { number_ = segment_->note(tensor); }
  at::Tensor unpack() override { return segment_->tensor(*number_); }

 private:
  std::shared_ptr<Segment> segment_;
  std::optional<std::size_t> number_;
};

class Dropping : public intercept::SavedTensorKeeper {
 public:
  explicit Dropping(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override { return std::make_unique<Dropped>(segment_); }

 private:
  std::shared_ptr<Segment> segment_;
};

}  // namespace

bool is_wanted() { return at::GradMode::is_enabled(); }

struct FirstRun::State {
  State(std::vector<at::Tensor> given, RunAgain run_again)
      : inputs(std::move(given)),
        segment(std::make_shared<Segment>(inputs, std::move(run_again))),
        keeper(segment),
        scope(keeper) {}

  std::vector<at::Tensor> inputs;
  std::shared_ptr<Segment> segment;
  intercept::RandomDraws draws;
  Dropping keeper;
  intercept::SavedTensorScope scope;
};

FirstRun::FirstRun(std::vector<at::Tensor> inputs, RunAgain run_again)
    : state_(std::make_unique<State>(std::move(inputs), std::move(run_again))) {}

FirstRun::~FirstRun() = default;

void FirstRun::complete() { state_->segment->complete(state_->inputs, state_->draws.any()); }

}  // namespace tessera::recomputation
