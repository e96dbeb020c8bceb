#pragma once

#include <tessera/store/secret.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace tessera::store {

struct ServerOptions {
  /// How long a connection may take to prove the secret. Raise it on networks where packets get lost.
  std::chrono::milliseconds handshake_timeout{2000};
  /// A client with a lease that sends nothing for this long is regarded as dead, and its leases fire. By default a
  /// client sends something every second; keep this several times as long.
  std::chrono::milliseconds silence_limit{5000};
  /// The same for clients without a lease. No lease depends on them, so they may be stopped in a debugger for long.
  std::chrono::milliseconds idle_limit{std::chrono::hours(24)};
  /// Connections that have not proved the secret yet; one more drops the oldest, whose client tries again.
  std::size_t max_unauthenticated = 512;
  /// The share of one core's time for connections that do not prove the secret. Above it, new ones have to wait.
  double strangers_share = 0.01;
  /// How many bytes of answers may be queued for a client. A client with more is dropped.
  std::size_t max_output_bytes = std::size_t{256} << 20;
};

/// Keys and values for the processes of a job. A client that cannot prove the job's secret neither reads nor writes
/// anything, and all traffic is encrypted. Serves on one thread of its own until it is destroyed.
class StoreServer {
 public:
  /// Listens on `address` alone; port 0 takes a free one. Throws ConfigError when that is not possible.
  StoreServer(const std::string& address, int port, const Secret& secret, const ServerOptions& options = {});

  /// Serves on a socket that listens already, and owns it from now on.
  StoreServer(int listening_descriptor, const Secret& secret, const ServerOptions& options = {});

  /// Ends the connections of all clients; leases do not fire. Blocks: for milliseconds.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;

  /// How many clients have proved the secret and are connected. Thread-safety: any thread.
  std::size_t num_clients() const;

 private:
  class Thread;

  std::unique_ptr<Thread> thread_;
};

}  // namespace tessera::store
