#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::comm {

/// Runs operations one after another: at once on the caller's thread when the caller would wait anyway and nothing is
/// queued, else on a thread of its own that starts with the first asynchronous operation.
class Executor {
 public:
  using Operation = std::function<void()>;

  explicit Executor(int rank) : rank_(rank) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// `outputs` become the result of the work's future. `wait()` rethrows what `operation` throws.
  c10::intrusive_ptr<c10d::Work> run(c10d::OpType type, bool async, std::vector<at::Tensor> outputs,
                                     Operation operation);

 private:
  class ExecutorWork;

  void serve();

  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<c10d::Work>> queue_;  // all are ExecutorWork
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
