#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <thread>

namespace tessera::intercept {

/// What a thread does with a model.
enum class Pass { kForward, kBackward, kEvaluation };

/// What this thread does: a backward pass, what builds a graph for one, and what builds none.
Pass present_pass();

/// Hears of a model's backward passes. Calls come on the thread of the gradient.
class PassListener {
 public:
  virtual ~PassListener() = default;

  /// The first gradient of a pass has come. What it throws comes out of backward(), and the pass has not begun.
  virtual void on_backward() = 0;
  /// The pass is over. `had_gradients`: of the model; passes that ask for others, as torch::autograd::grad does inside
  /// a loss, bring none.
  virtual void on_backward_end(bool had_gradients) = 0;
  /// An exception ended the pass: said when the model is next used, where it may communicate and throw.
  virtual void on_backward_failure() = 0;
  /// The same at once, while the exception is on its way.
  virtual void on_backward_dropped() noexcept {}
  /// A pass begins inside another one. Throws where that cannot be followed; else the outer one finds its gradients
  /// begun anew.
  virtual void on_nested_backward() {}
};

/// The one place that knows which pass of a model is under way. Its owner tells it of operators and gradients, and
/// hears when a pass begins, ends or fails.
///
/// Note [Passes]
/// Autograd tells nobody where a forward begins or ends: a model's own begins when one of its parameters is first used
/// to build a graph. Nor does it matter how many forwards have run when a backward begins: what a pass does is decided
/// when its first gradient comes. So forwards and backwards come in any order, several forwards before several
/// backwards too.
/// Autograd calls back at the end of a backward pass, but not when an exception ends it; and passes may be nested. So
/// the callback holds a token: when that dies and nobody called, the pass has failed.
/// Thread-safety: of the thread that made it, and of those that run its backward passes for it: autograd has a thread
/// for each device.
class PassTracker {
 public:
  enum class Phase {
    kBetween,
    kForward,   ///< since a parameter was used to build a graph
    kBackward,  ///< since a gradient came
  };

  /// Requires: whoever owns the tracker is the listener, or owns it.
  explicit PassTracker(std::weak_ptr<PassListener> listener);

  Phase phase() const { return phase_; }
  bool is_own_thread() const { return std::this_thread::get_id() == thread_; }
  /// Whether a gradient of this parameter that comes on this thread is of a backward that another thread has called.
  bool is_foreign(const at::Tensor& parameter) const { return !is_own_thread() && parameter.is_cpu(); }

  /// A forward has begun; unless it is refused.
  void enter_forward() { phase_ = Phase::kForward; }
  void leave_forward() { phase_ = Phase::kBetween; }

  /// Whether the backward pass of this thread has brought gradients of the model.
  bool is_in_pass() const;
  /// An operator, or a gradient, of a backward pass.
  void enter_backward();
  /// A gradient of the model.
  void enter_gradients();
  /// Tells the listener of a pass that an exception has ended, if there is one.
  void find_failure();

  void enter_no_sync() { ++num_no_sync_; }
  void leave_no_sync() { --num_no_sync_; }
  /// While gradients are promised no pass averages: their owner says when they are complete.
  void enter_promise() { is_promised_ = true; }
  void leave_promise() { is_promised_ = false; }
  /// Whether a pass that begins now adds to the gradients of this rank, and averages nothing.
  bool only_adds() const { return num_no_sync_ > 0 || is_promised_; }
  /// Of the pass that has begun last: whether its gradients are averaged, and whether the graph is gone through again.
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
