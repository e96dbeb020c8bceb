#include "comm/device/device_calls.h"

#include <exception>
#include <utility>

namespace tessera::comm {
namespace {

/// Calls on devices take tens of microseconds and more, and records of them are for people.
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

DeviceCalls::~DeviceCalls() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeviceCalls::follow(std::uint64_t ticket, c10::intrusive_ptr<c10d::Work> work, std::chrono::milliseconds timeout,
                         std::function<std::string()> describe) {
  const std::lock_guard lock(mutex_);
  followed_.push_back(
      {ticket, std::move(work), std::chrono::steady_clock::now() + timeout, timeout, std::move(describe)});
  if (!thread_.joinable()) thread_ = std::thread([this] { look(); });
  changed_.notify_all();
}

std::optional<std::string> DeviceCalls::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::pair<bool, std::string> DeviceCalls::state_of(const Followed& call) {
  if (call.work->isCompleted()) {
    const std::exception_ptr error = call.work->exception();
    if (!error) return {true, ""};
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& thrown) {
      return {true, call.describe() + ": " + thrown.what()};
    }
  }
  if (std::chrono::steady_clock::now() < call.deadline) return {false, ""};
  return {true, call.describe() + ": not done on the device after " + std::to_string(call.timeout.count()) + " ms"};
}

void DeviceCalls::look() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [&] { return stopping_ || !followed_.empty(); });
    std::list<Followed> over;
    std::string failure;
    for (auto one = followed_.begin(); one != followed_.end();) {
      auto [is_over, why] = state_of(*one);
      if (is_over) {
        recorder_.end(one->ticket, !why.empty());
        over.splice(over.end(), followed_, one++);
      } else {
        ++one;
      }
      if (!why.empty() && !failure_) failure_ = failure = std::move(why);
    }
    lock.unlock();
    over.clear();  // frees what the calls kept
    if (!failure.empty() && watch_) watch_->explain(failure);
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace tessera::comm
