#include "comm/engine/executor.h"

#include <ATen/core/ivalue.h>

#include <utility>

namespace tessera::comm {

class Executor::ExecutorWork : public c10d::Work {
 public:
  ExecutorWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Operation operation, bool queued)
      : c10d::Work(rank, type), outputs_(std::move(outputs)), operation_(std::move(operation)) {
    if (queued) make_future();
  }

  void execute() {
    std::exception_ptr failure;
    try {
      operation_();
    } catch (...) {
      failure = std::current_exception();
    }
    operation_ = nullptr;
    // The future first: a thread that waits on the work may read the future next.
    if (future_ && failure) future_->setError(failure);
    if (future_ && !failure) future_->markCompleted(at::IValue(outputs_));
    finish(failure);
  }

  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (!future_) {  // not queued: done before the caller sees the work
      make_future();
      if (exception_) {
        future_->setError(exception_);
      } else {
        future_->markCompleted(at::IValue(outputs_));
      }
    }
    return future_;
  }

 private:
  void make_future() {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }

  std::vector<at::Tensor> outputs_;
  Operation operation_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

c10::intrusive_ptr<c10d::Work> Executor::run(c10d::OpType type, bool async, std::vector<at::Tensor> outputs,
                                             Operation operation) {
  c10::intrusive_ptr<ExecutorWork> work;
  {
    const std::lock_guard lock(mutex_);
    const bool queued = async || busy_ || !queue_.empty();
    work = c10::make_intrusive<ExecutorWork>(rank_, type, std::move(outputs), std::move(operation), queued);
    if (queued) {
      queue_.emplace_back(work);
      if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
      changed_.notify_all();
      return work;
    }
    busy_ = true;
  }
  work->execute();
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
  }
  changed_.notify_all();
  return work;
}

void Executor::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return (stopping_ && queue_.empty()) || (!busy_ && !queue_.empty()); });
    if (queue_.empty()) return;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    static_cast<ExecutorWork&>(*work).execute();
    work.reset();
    lock.lock();
    busy_ = false;
  }
}

}  // namespace tessera::comm
