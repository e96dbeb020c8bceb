#pragma once

#include <tessera/store/client.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "store/local_store.h"
#include "store/server_loop.h"
#include "store/sockets.h"

namespace tessera::testing {

/// A store for which time stands still unless the test moves it. Its clients live by the clock of the system.
class MovedStore {
 public:
  using Clock = std::chrono::steady_clock;

  explicit MovedStore(const store::ServerOptions& options = {})
      : MovedStore(store::listen_on("127.0.0.1", 0), options) {}
  ~MovedStore() {
    loop_.stop();
    thread_.join();
  }
  MovedStore(const MovedStore&) = delete;
  MovedStore& operator=(const MovedStore&) = delete;

  store::StoreClient client(const store::ClientOptions& options = {}) const {
    return store::StoreClient::connect("127.0.0.1", port_, secret_, kLong, options);
  }
  const store::Secret& secret() const { return secret_; }
  int port() const { return port_; }

  /// Lets `time` pass for the server. Who is late is noticed only every so often: with the server's own options, every
  /// quarter of a second.
  void move(Clock::duration time) {
    // A longer step would be taken for a machine that stood still: see Note [Time that nobody saw].
    constexpr Clock::duration kStep = std::chrono::milliseconds(100);
    for (auto left = time; left > Clock::duration::zero(); left -= kStep) {
      passed_ = passed_.load() + std::min(left, kStep);
      // The server has been awake since the step when it answers what was asked after it.
      driver_.num_keys();
    }
  }

 private:
  MovedStore(Descriptor listener, const store::ServerOptions& options)
      : port_(store::port_of(listener)),
        loop_(std::move(listener), secret_, options, [this] { return start_ + passed_.load(); }),
        thread_([this] { loop_.run(); }) {}

  const store::Secret secret_ = store::Secret::mint();
  const Clock::time_point start_ = Clock::now();
  std::atomic<Clock::duration> passed_ = Clock::duration::zero();
  int port_;
  store::ServerLoop loop_;
  std::thread thread_;
  store::StoreClient driver_ = client();
};

}  // namespace tessera::testing
