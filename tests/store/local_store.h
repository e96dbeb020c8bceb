#pragma once

#include <tessera/store/client.h>
#include <tessera/store/server.h>

#include <chrono>
#include <functional>
#include <thread>

namespace tessera::testing {

/// Longer than anything takes on a busy machine, shorter than a test may.
inline constexpr std::chrono::milliseconds kLong{20'000};

/// A store on a free port of the loopback address.
struct LocalStore {
  explicit LocalStore(const store::ServerOptions& options = {}) : server("127.0.0.1", 0, secret, options) {}

  store::StoreClient client(const store::ClientOptions& options = {}) const {
    return store::StoreClient::connect("127.0.0.1", server.port(), secret, kLong, options);
  }

  const store::Secret secret = store::Secret::mint();
  store::StoreServer server;
};

/// Whether it becomes true in time.
inline bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds timeout = kLong) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace tessera::testing
