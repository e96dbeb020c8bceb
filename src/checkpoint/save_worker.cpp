#include "checkpoint/save_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace tessera::checkpoints {
namespace {

// The lowest there is: beside a busy thread on its core it gets some hundredths, and where the core is idle all of it.
// Counted from the priority that the program has: at one of its own, a thread would starve beside a training that was
// given a high one.
constexpr int kYielding = 19;

void give_way() {
  const auto thread = static_cast<id_t>(gettid());  // on Linux a number of a thread will do
  errno = 0;
  const int priority = getpriority(PRIO_PROCESS, thread);
  // Where it is refused, the thread is as others are.
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
    job.save = nullptr;  // gives back its memory before anybody is told that it is done
    lock.lock();
    working_ = false;
    outcomes_.push_back(std::move(outcome));
    changed_.notify_all();
  }
}

}  // namespace tessera::checkpoints
