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
class Lane {
 public:
  using Operation = std::function<void()>;

  explicit Lane(int rank) : rank_(rank) {}
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// `outputs` become the result of the work's future. What `operation` throws comes out of `wait()`.
  c10::intrusive_ptr<c10d::Work> run(c10d::OpType type, bool async, std::vector<at::Tensor> outputs,
                                     Operation operation);

 private:
  class LaneWork;

  void serve();

  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<c10d::Work>> queue_;  // LaneWorks all
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
