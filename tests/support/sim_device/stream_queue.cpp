#include "support/sim_device/stream_queue.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <utility>

namespace tessera::testing::sim {

StreamQueue::StreamQueue(std::size_t id, int device) : id_(id), device_(device), thread_([this] { run(); }) {}

StreamQueue::~StreamQueue() {
  ends_ = true;
  ++num_signals_;
  num_signals_.notify_all();
  thread_.join();
}

std::uint64_t StreamQueue::push(std::function<void()> work) {
  std::uint64_t ticket = 0;
  {
    // What the work keeps may be freed by its end: its program hears of that as of its own.
    auto hears = c10::ThreadLocalDebugInfo::current();
    const std::lock_guard lock(mutex_);
    work_.push_back({std::move(work), std::move(hears)});
    ticket = ++num_pushed_;
  }
  ++num_signals_;
  num_signals_.notify_all();
  return ticket;
}

void StreamQueue::wait(std::uint64_t ticket) const {
  for (auto done = num_done_.load(); done < ticket; done = num_done_.load()) num_done_.wait(done);
}

void StreamQueue::rethrow() {
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    failure = std::exchange(failure_, nullptr);
  }
  if (failure) std::rethrow_exception(failure);
}

void StreamQueue::run() {
  at::set_num_threads(1);  // of this thread: the same bits whatever the machine
  for (;;) {
    const auto num_signals = num_signals_.load();
    Work work;
    {
      const std::lock_guard lock(mutex_);
      if (!work_.empty()) {
        work = std::move(work_.front());
        work_.pop_front();
      }
    }
    if (!work.run) {
      if (ends_) return;
      num_signals_.wait(num_signals);
      continue;
    }
    std::exception_ptr failure;
    const c10::DebugInfoGuard hears(work.hears);
    try {
      work.run();
    } catch (...) {
      failure = std::current_exception();
    }
    work.run = nullptr;  // what it kept is free when it is done
    if (failure) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = failure;
    }
    ++num_done_;
    num_done_.notify_all();
  }
}

}  // namespace tessera::testing::sim
