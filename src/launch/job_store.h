#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/secret.h>
#include <tessera/store/server.h>

#include <future>
#include <string>
#include <vector>

namespace tessera::launch {

/// Note [A port without luck]
/// A port that was free a moment ago may be taken by the time a rank listens there. So the launcher keeps a socket
/// bound to it, with SO_REUSEADDR and without listening, as long as the job lives. Linux then does not assign the
/// number to a process that asks for any free port, nor to an outgoing connection. But it lets rank 0 bind the port,
/// because rank 0 sets SO_REUSEADDR too and no socket listens yet.
///
/// Ranks of Tessera meet in the launcher's own store (JobStore). This port is for programs that listen there
/// themselves, as plain LibTorch and PyTorch do.
class RendezvousPort {
 public:
  /// Port 0: a free one. Throws ConfigError when the address is not of this host or the port is taken.
  explicit RendezvousPort(const std::string& address = "127.0.0.1", int port = 0);

  const std::string& address() const { return address_; }
  int port() const { return port_; }
  int descriptor() const { return socket_.get(); }

 private:
  std::string address_;
  int port_ = 0;
  Descriptor socket_;
};

/// The store in which the ranks of a job meet. It lives in the launcher of node 0, so that it outlives restarts.
class JobStore {
 public:
  /// Serves on `address` alone; port 0 takes a free one. Throws ConfigError when that is not possible.
  JobStore(std::string address, int port, const store::Secret& secret);

  int port() const { return server_.port(); }

  /// Deletes the keys of a generation that is over. Does not block: a thread asks the store to do it.
  void forget(int generation);

  /// How many clients are connected, those of `forget` included.
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
