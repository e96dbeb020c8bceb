#include "comm/device/device_calls.h"

#include <c10/core/DeviceGuard.h>

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

void DeviceCalls::follow(std::uint64_t ticket, c10::intrusive_ptr<c10d::Work> work, c10::Device device,
                         std::chrono::milliseconds timeout, std::function<std::string()> describe) {
  const std::lock_guard lock(mutex_);
  followed_.push_back(
      {ticket, std::move(work), device, std::chrono::steady_clock::now() + timeout, timeout, std::move(describe)});
  if (!thread_.joinable()) thread_ = std::thread([this] { look(); });
  changed_.notify_all();
}

std::optional<std::string> DeviceCalls::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

/// Note [Threads that ask devices]
/// A new thread's current device is the first one. When the thread asks for an event of another device, or frees one,
/// CUDA makes a context on the first, of hundreds of megabytes: each rank of a node would. So threads of ours have the
/// device of what they ask for as the current one.
std::pair<bool, std::string> DeviceCalls::state_of(const Followed& call) {
  const c10::DeviceGuard there(call.device);
  try {
    if (call.work->isCompleted()) {
      if (const std::exception_ptr error = call.work->exception()) std::rethrow_exception(error);
      return {true, ""};
    }
  } catch (const std::exception& thrown) {  // of the call, or of a device that answers nothing any more
    return {true, call.describe() + ": " + thrown.what()};
  }
  if (std::chrono::steady_clock::now() < call.deadline) return {false, ""};
  return {true, call.describe() + ": not done on the device after " + std::to_string(call.timeout.count()) + " ms"};
}

/// Frees what the calls kept.
void DeviceCalls::forget(std::list<Followed>& calls) {
  while (!calls.empty()) {
    const c10::DeviceGuard there(calls.front().device);
    calls.pop_front();
  }
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
    forget(over);
    if (!failure.empty() && watch_) watch_->explain(failure);
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace tessera::comm
