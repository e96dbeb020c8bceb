#pragma once

#include <tessera/intercept/watch.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::fsdp {

/// Makes every access to the shards' bytes throw. LibTorch drops the exceptions of a listener, so the operator that the
/// listener wants to stop has to throw the error itself. The values stay as they are.
class ShardLock {
 public:
  explicit ShardLock(std::vector<at::Tensor> shards) : shards_(std::move(shards)) {}

  void refuse(const std::string& why);
  /// The shards may be used again.
  void allow();

 private:
  std::vector<at::Tensor> shards_;
  std::set<c10::StorageImpl*> locked_;
};

/// The error message for an optimizer that lays all parameters out as one vector.
std::string why_no_vector();

/// Refuses optimizers that compute with all parameters as one vector, as LBFGS does: each rank would treat its part as
/// the whole vector. Just before such an optimizer adds a piece of the vector to a parameter, it calls `view_as` on the
/// piece with the parameter, and that is detected. With a single parameter the piece is the whole vector and looks like
/// any tensor; then every `view_as` with the parameter is refused, unless the optimizer was checked.
/// Thread-safety: used by the thread that made it.
class VectorGuard {
 public:
  /// `shards` are the tensors that an optimizer steps, apart from `num_others` others. Requires: `lock` outlives it.
  VectorGuard(const std::vector<at::Tensor>& shards, std::size_t num_others, ShardLock& lock);

  /// The optimizer is known to work element by element.
  void trust_optimizer();

 private:
  class UseListener;
  std::shared_ptr<UseListener> listener_;
  intercept::Watch watch_;
};

/// Reproducible mode: watches parameters that stay whole, and refuses operators that draw random numbers from the first
/// use of a parameter to the end of backward.
/// Thread-safety: used by the thread that made it. Operators of other threads are ignored.
class RandomGuard : public intercept::Listener {
 public:
  /// `on_whole_use`: an operator takes a parameter that stays whole.
  RandomGuard(int world_rank, std::function<void(const intercept::Use&)> on_whole_use);

  void begin() { is_active_ = true; }
  void end() { is_active_ = false; }
  /// Throws the refusal that was kept, if there is one: an exception of the callback itself would be lost.
  void raise();

  void on_use(const intercept::Use& use) override;
  void on_operator(std::string_view operator_name) override;

 private:
  int world_rank_;
  std::function<void(const intercept::Use&)> on_whole_use_;
  std::thread::id thread_ = std::this_thread::get_id();
  bool is_active_ = false;
  std::exception_ptr refusal_;
};

/// Lets threads that do not train compute with a sharded model. While their operators run, parameters neither get bytes
/// nor lose them. So these threads find a parameter either whole, or in shards, which is an error; never in between.
/// Thread-safety: enter() and leave() from any thread; Change from the thread that trains.
class ThreadGate {
 public:
  /// Called around an operator. Blocks: as long as a Change is under way. Operators are nested.
  void enter();
  void leave();

  /// While one lives, the thread that trains may give or take bytes. Blocks: until the operators of other threads have
  /// ended. Changes nest.
  class Change {
   public:
    explicit Change(ThreadGate& gate);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    ThreadGate& gate_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable may_enter_;
  std::condition_variable may_change_;
  std::map<std::thread::id, int> inside_;  // how many nested operators
  int num_changes_ = 0;
};

}  // namespace tessera::fsdp
