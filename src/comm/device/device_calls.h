#pragma once

#include <tessera/flight/recorder.h>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/watch/watch.h"

namespace tessera::comm {

/// Follows calls that run on devices, for which no host thread waits: when they are done, their records end; when they
/// are not done in time, or fail, the job cannot go on.
/// Thread-safety: all functions.
class DeviceCalls {
 public:
  /// `watch` may be null. Both outlive this object.
  DeviceCalls(flight::Recorder& recorder, Watch* watch) : recorder_(recorder), watch_(watch) {}
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  /// `device`: the call's. `describe`: the call in words, for an error.
  void follow(std::uint64_t ticket, c10::intrusive_ptr<c10d::Work> work, c10::Device device,
              std::chrono::milliseconds timeout, std::function<std::string()> describe);
  /// The first failure; nothing while all is well.
  std::optional<std::string> failure() const;

 private:
  struct Followed {
    std::uint64_t ticket;
    c10::intrusive_ptr<c10d::Work> work;
    c10::Device device;
    std::chrono::steady_clock::time_point deadline;
    std::chrono::milliseconds timeout;
    std::function<std::string()> describe;
  };

  void look();
  /// Whether the call is over, and why it failed; "" if it did not.
  static std::pair<bool, std::string> state_of(const Followed& call);
  static void forget(std::list<Followed>& calls);

  flight::Recorder& recorder_;
  Watch* const watch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Followed> followed_;
  std::optional<std::string> failure_;
  bool stopping_ = false;
  std::thread thread_;  // begins with the first call
};

}  // namespace tessera::comm
