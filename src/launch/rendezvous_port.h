#pragma once

#include <tessera/core/descriptor.h>
#include <string>

namespace tessera::launch {

/// Note [A port without luck]
/// A port that was free a moment ago may be anybody's by the time a rank listens there. So the launcher keeps a socket
/// bound to it, with SO_REUSEADDR and without listening, as long as the job lives. Linux then gives the number to
/// nobody who asks for any port, nor to a connection, but lets rank 0 bind it, because rank 0 says SO_REUSEADDR too and
/// nobody listens yet.
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

}  // namespace tessera::launch
