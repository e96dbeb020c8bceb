#include "checkpoint/save/save_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace tessera::checkpoints {
namespace {

// The lowest priority: beside a busy thread it gets some hundredths of the core, and all of an idle one. It is relative
// to the priority of the program: with an absolute one, the thread would starve beside a training of high priority.
constexpr int kYielding = 19;

void give_way() {
  const auto thread = static_cast<id_t>(gettid());  // Linux accepts the number of a thread
  errno = 0;
  const int priority = getpriority(PRIO_PROCESS, thread);
  // If the system refuses, the thread keeps its priority.
  if (errno == 0) setpriority(PRIO_PROCESS, thread, priority + kYielding);
}

}  // namespace

SaveWorker::~SaveWorker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SaveWorker::submit(std::int64_t step, std::function<void()> save) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back({step, std::move(save)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void SaveWorker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !working_; });
}

bool SaveWorker::has_failed() {
  const std::lock_guard lock(mutex_);
  return std::any_of(outcomes_.begin(), outcomes_.end(), [](const auto& outcome) { return !outcome.error.empty(); });
}

std::vector<SaveOutcome> SaveWorker::take_outcomes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

void SaveWorker::run() {
  if (yields_) give_way();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    working_ = true;
    lock.unlock();
    SaveOutcome outcome{job.step, {}};
    try {
      job.save();
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    job.save = nullptr;  // frees its memory before waiting threads are notified
    lock.lock();
    working_ = false;
    outcomes_.push_back(std::move(outcome));
    changed_.notify_all();
  }
}

}  // namespace tessera::checkpoints
