#pragma once

#include <tessera/store/secret.h>
#include <tessera/store/server.h>

#include <future>
#include <string>
#include <vector>

namespace tessera::launch {

/// The store that the ranks of a job meet in. It lives in the launcher of node 0, so that it outlives restarts.
class JobStore {
 public:
  /// Serves on `address` alone; port 0 takes a free one. Throws ConfigError when that is not possible.
  JobStore(std::string address, int port, const store::Secret& secret);

  int port() const { return server_.port(); }

  /// Takes away what the ranks of a generation that is over left behind. Does not block: a thread asks the store to.
  void forget(int generation);

  /// How many processes are connected, those of `forget` included.
  std::size_t num_clients() const { return server_.num_clients(); }

 private:
  std::string address_;
  store::Secret secret_;
  store::StoreServer server_;
  std::vector<std::future<void>> forgetting_;  ///< last: each waits for its thread before the store ends
};

/// HOST:PORT, with an address of IPv6 in brackets.
std::string endpoint_text(const std::string& host, int port);

}  // namespace tessera::launch
