#pragma once

#include <tessera/observe/sink.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "observe/socket_address.h"

namespace tessera::observe {

/// What the server shows: written by one thread, read by another.
class MetricsPage {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// Answers `GET /metrics` with a page, on a thread of its own.
///
/// Note [Clients that mean no good]
/// Whoever reaches the address may connect, so nobody is waited for and nothing grows: a client has a few seconds for
/// everything, a request has a largest size, and there is a largest number of connections, the oldest of which makes
/// room for a new one. Only so many are accepted in a second, so that a flood does not cost the training a core.
class MetricsServer {
 public:
  static constexpr std::size_t kMaxConnections = 16;
  static constexpr std::size_t kMaxRequestBytes = 8192;
  static constexpr int kMaxAcceptsPerSecond = 50;

  /// Tells the time: that of the system, or in a test the time that the test has made it.
  using TimeSource = std::function<std::chrono::steady_clock::time_point()>;

  /// Throws CommError when the address cannot be had.
  MetricsServer(ListenAddress address, std::shared_ptr<const MetricsPage> page,
                TimeSource time = std::chrono::steady_clock::now);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// With the port that was taken.
  const ListenAddress& address() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The answer to a whole request: status line, headers and body.
std::string metrics_response(const std::string& request, const MetricsPage& page);

}  // namespace tessera::observe
