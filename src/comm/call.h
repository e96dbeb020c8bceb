#pragma once

#include <tessera/comm/communicator.h>

#include <functional>
#include <memory>
#include <source_location>
#include <vector>

#include "comm/work_state.h"

namespace tessera::comm {

/// One call of a Communicator on its way to a backend: records it, starts it, and explains what goes wrong.
class Call {
 public:
  Call(std::shared_ptr<Group> group, const char* operation, const at::Tensor& about, std::chrono::milliseconds timeout,
       const std::source_location& where);

  /// Keeps `tensor` alive until the operation is done.
  Call& keep(at::Tensor tensor);
  Call& result(at::Tensor tensor);
  /// Runs after the operation, before `wait()` returns.
  Call& then(std::function<void()> finish);

  /// `begin` returns what it started: a c10d work or a transfer. Anything that it throws is explained.
  template <typename Begin>
  Work start(Begin begin) {
    try {
      prepare();
      assign(begin());
      note_begun();
    } catch (...) {
      state_->rethrow();
    }
    return Work(state_);
  }

  /// Throws ConfigError with the call's description.
  [[noreturn]] void refuse(const std::string& reason);
  /// The reason is a literal: text that is made for a call that is right would be made in every call.
  void require(bool condition, const char* reason) {
    if (!condition) refuse(reason);
  }

 private:
  /// Refuses to begin in a job that has lost a rank, or, in the checked mode, what the others do not do too.
  void prepare() const;
  void assign(c10::intrusive_ptr<c10d::Work> work) {
    state_->work = std::move(work);
    note_when_done();
  }
  void assign(std::unique_ptr<Transfer> transfer) { state_->transfer = std::move(transfer); }
  /// For a trace: a call that is waited for later was done before.
  void note_when_done();
  /// Likewise: what a backend did on this thread before it went on.
  void note_begun();

  std::shared_ptr<Work::State> state_;
  std::int64_t began_ns_ = 0;  // only where a trace asks for it
  bool is_collective_ = true;
  at::Tensor about_;
};

/// `sizes`, or equal pieces of `total` when empty; checked against it.
Communicator::Sizes checked_sizes(Call& call, const Communicator::Sizes& sizes, int num_ranks, std::int64_t total);
c10d::ReduceOp to_c10d(ReduceOp op);

}  // namespace tessera::comm
