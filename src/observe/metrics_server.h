#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/observe/step_record.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace tessera::observe {

/// Where to listen.
struct ListenAddress {
  std::string host;  ///< numeric: "127.0.0.1", "::1"
  int port = 0;      ///< 0: any that is free
};

/// "9464" (of the loopback address), "127.0.0.1:9464", "[::1]:9464", "localhost:9464". Names other than localhost are
/// not resolved: the interface should be explicit. Throws ConfigError.
ListenAddress parse_listen_address(const std::string& text);

bool is_loopback(const ListenAddress& address);

/// A listening, non-blocking socket. Sets the port of `address` to the one that was bound. Throws CommError.
Descriptor listen_at(ListenAddress& address);

/// "127.0.0.1:9464", "[::1]:9464"
std::string to_string(const ListenAddress& address);

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
/// Anyone who reaches the address may connect, so the server waits for no client and bounds everything: the time of a
/// connection, the size of a request, and the number of connections, where a new one replaces the oldest. It also
/// bounds how many it accepts in a second, so that a flood does not cost the training a core.
class MetricsServer {
 public:
  static constexpr std::size_t kMaxConnections = 16;
  static constexpr std::size_t kMaxRequestBytes = 8192;
  static constexpr int kMaxAcceptsPerSecond = 50;

  /// Returns the time: that of the system or, in a test, a time that the test sets.
  using TimeSource = std::function<std::chrono::steady_clock::time_point()>;

  /// Throws CommError when the address cannot be bound.
  MetricsServer(ListenAddress address, std::shared_ptr<const MetricsPage> page,
                TimeSource time = std::chrono::steady_clock::now);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// With the port that was bound.
  const ListenAddress& address() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The answer to a whole request: status line, headers and body.
std::string metrics_response(const std::string& request, const MetricsPage& page);

}  // namespace tessera::observe
