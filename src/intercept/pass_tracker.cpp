#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/pass_tracker.h>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace tessera::intercept {

Pass present_pass() {
  if (in_backward()) return Pass::kBackward;
  return at::GradMode::is_enabled() ? Pass::kForward : Pass::kEvaluation;
}

/// Belongs to a pass of autograd: see Note [Passes].
struct PassTracker::Token {
  Token(std::weak_ptr<PassListener> its_listener, PassTracker& its_tracker, int its_pass)
      : listener(std::move(its_listener)), tracker(its_tracker), pass(its_pass) {}
  ~Token() {
    if (has_ended) return;
    if (const auto alive = listener.lock()) tracker.drop(pass);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  void end() {
    has_ended = true;
    if (const auto alive = listener.lock()) tracker.end(pass);
  }

  std::weak_ptr<PassListener> listener;
  PassTracker& tracker;
  int pass;
  bool has_ended = false;
};

PassTracker::PassTracker(std::weak_ptr<PassListener> listener)
    : listener_(std::move(listener)), thread_(std::this_thread::get_id()) {}

bool PassTracker::is_in_pass() const { return phase_ == Phase::kBackward && backward_number() == pass_; }

void PassTracker::enter_backward() {
  const int pass = backward_number();
  if (pass == pass_) return;
  find_failure();
  if (phase_ == Phase::kBackward) {
    if (const auto listener = listener_.lock()) listener->on_nested_backward();
    phase_ = Phase::kForward;
  }
  pass_ = pass;
  at_end_of_backward([token = std::make_shared<Token>(listener_, *this, pass)] { token->end(); });
}

void PassTracker::enter_gradients() {
  enter_backward();
  if (phase_ == Phase::kBackward) return;
  averages_ = !only_adds();
  keeps_graph_ = intercept::keeps_graph();
  if (const auto listener = listener_.lock()) listener->on_backward();
  phase_ = Phase::kBackward;
}

void PassTracker::end(int pass) {
  if (pass != pass_) return;
  pass_ = kNoPass;
  const bool had_gradients = phase_ == Phase::kBackward;
  if (had_gradients) phase_ = Phase::kBetween;
  if (const auto listener = listener_.lock()) listener->on_backward_end(had_gradients);
}

void PassTracker::drop(int pass) noexcept {
  if (pass != pass_) return;
  failed_ = true;
  if (const auto listener = listener_.lock()) listener->on_backward_dropped();
}

void PassTracker::find_failure() {
  if (!failed_.exchange(false)) return;
  pass_ = kNoPass;
  phase_ = Phase::kBetween;
  if (const auto listener = listener_.lock()) listener->on_backward_failure();
}

}  // namespace tessera::intercept
