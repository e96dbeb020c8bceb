#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::checkpoints {

/// What became of a save on this rank.
struct SaveOutcome {
  std::int64_t step = 0;
  std::string error;  ///< empty: it went well
};

/// Does saves one after the other on a thread of its own. Thread-safety: all members may be called from any thread.
class SaveWorker {
 public:
  /// `yields`: the thread gives way to others that need the processor, such as those that train meanwhile.
  explicit SaveWorker(bool yields) : yields_(yields) {}
  /// Waits for all submitted saves.
  ~SaveWorker();
  SaveWorker(const SaveWorker&) = delete;
  SaveWorker& operator=(const SaveWorker&) = delete;

  /// What `save` throws becomes the outcome's error.
  void submit(std::int64_t step, std::function<void()> save);
  /// Blocks: until everything that was submitted is done.
  void wait();
  /// Whether one of the saves that take_outcomes() would return has failed.
  bool has_failed();
  /// The outcomes since the last call, in order.
  std::vector<SaveOutcome> take_outcomes();

 private:
  struct Job {
    std::int64_t step;
    std::function<void()> save;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<SaveOutcome> outcomes_;
  bool working_ = false;
  bool ending_ = false;
  bool yields_;
  std::thread thread_;  // started by the first job
};

}  // namespace tessera::checkpoints
