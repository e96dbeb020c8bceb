#pragma once

#include <optional>
#include <string>

namespace tessera::comm {

/// From 1 to 65535, in digits; nothing for any other text.
std::optional<int> port_number(const std::string& text);

/// Whether `host` is this host under a name that no other host can reach.
bool is_loopback(const std::string& host);

/// The local address from which packets to `host` leave. Peers on that network can reach it.
std::string address_towards(const std::string& host, int port);

/// An address at which other hosts reach this one; the loopback address when there is none.
std::string address_of_this_host();

/// A socket that listens.
class Listener {
 public:
  Listener(int descriptor, int port) : descriptor_(descriptor), port_(port) {}
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  /// Hands the socket over to the caller.
  int release();

 private:
  int descriptor_;
  int port_;
};

/// Listens on `address` alone, not on every interface; port 0 takes a free one.
/// Throws ConfigError when that is not possible.
Listener listen_on(const std::string& address, int port);

}  // namespace tessera::comm
