#pragma once

#include <atomic>
#include <memory>
#include <thread>

namespace tessera::intercept {

/// What a thread does with a model.
enum class Pass { kForward, kBackward, kEvaluation };

/// What this thread does: a backward pass (kBackward), or else a forward that builds a graph (kForward) or builds none
/// (kEvaluation).
Pass present_pass();

/// Notified of a model's backward passes, on the thread that computes the gradient.
class PassListener {
 public:
  virtual ~PassListener() = default;

  /// The first gradient of a pass has arrived. If it throws, backward() rethrows, and the pass does not count as begun.
  virtual void on_backward() = 0;
  /// The pass is over. `had_gradients`: it computed gradients of the model. Passes for other gradients only, as
  /// torch::autograd::grad inside a loss, do not.
  virtual void on_backward_end(bool had_gradients) = 0;
  /// An exception ended the pass. Called when the model is next used, where the listener may communicate and throw.
  virtual void on_backward_failure() = 0;
  /// The same, but called at once, while the exception unwinds the stack.
  virtual void on_backward_dropped() noexcept {}
  /// A pass begins inside another one. Throws if the listener does not support that; else the next gradient of the
  /// outer pass begins a pass again.
  virtual void on_nested_backward() {}
};

/// The one place that knows which pass of a model is under way. Its owner reports operators and gradients to it; it
/// notifies the listener when a pass begins, ends or fails.
///
/// Note [Passes]
/// Autograd does not report where a forward begins or ends: here a model's forward begins when one of its parameters is
/// first used to build a graph. It does not matter how many forwards have run when a backward begins: what a pass does
/// is decided when its first gradient arrives. So forwards and backwards may come in any order, also several forwards
/// before several backwards.
/// Autograd calls back at the end of a backward pass, but not when an exception ends it; and passes may be nested. So
/// the callback holds a token. If the token is destroyed before the callback was called, the pass has failed.
/// Thread-safety: used by the thread that made it, and by the threads that run its backward passes: autograd has a
/// thread for each device.
class PassTracker {
 public:
  enum class Phase {
    kBetween,
    kForward,   ///< since a parameter was used to build a graph
    kBackward,  ///< since a gradient arrived
  };

  /// Requires: the owner of the tracker is the listener, or owns the listener.
  explicit PassTracker(std::weak_ptr<PassListener> listener);

  Phase phase() const { return phase_; }
  /// Whether this thread is the one that made the tracker, or works on a backward pass that was called there.
  bool is_own_thread() const;

  /// A forward has begun.
  void enter_forward() { phase_ = Phase::kForward; }
  void leave_forward() { phase_ = Phase::kBetween; }

  /// Whether the backward pass of this thread has computed gradients of the model.
  bool is_in_pass() const;
  /// An operator or a gradient of a backward pass has arrived.
  void enter_backward();
  /// A gradient of the model has arrived.
  void enter_gradients();
  /// Notifies the listener if an exception has ended a pass.
  void find_failure();

  void enter_no_sync() { ++num_no_sync_; }
  void leave_no_sync() { --num_no_sync_; }
  /// While gradients are promised no pass averages: their owner says when they are complete.
  void enter_promise() { is_promised_ = true; }
  void leave_promise() { is_promised_ = false; }
  /// Whether a pass that begins now only adds to the gradients of this rank, and averages nothing.
  bool only_adds() const { return num_no_sync_ > 0 || is_promised_; }
  /// Of the pass that began last: whether its gradients are averaged, and whether it retains the graph.
  bool averages() const { return averages_; }
  bool keeps_graph() const { return keeps_graph_; }

 private:
  struct Token;
  static constexpr int kNoPass = -1;

  void end(int pass);
  void drop(int pass) noexcept;

  std::weak_ptr<PassListener> listener_;
  std::thread::id thread_;
  Phase phase_ = Phase::kBetween;
  int pass_ = kNoPass;  // autograd's number of it
  std::atomic<bool> failed_ = false;
  int num_no_sync_ = 0;
  bool is_promised_ = false;
  bool averages_ = true;
  bool keeps_graph_ = false;
};

}  // namespace tessera::intercept
