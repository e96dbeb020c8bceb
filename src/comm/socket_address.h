#pragma once

#include <chrono>
#include <string>

namespace tessera::comm {

/// Tries every few milliseconds to connect. Blocks: until somebody listens there.
/// Throws CommError after `timeout`, naming the address and why.
void wait_until_reachable(const std::string& host, int port, std::chrono::milliseconds timeout);

/// The address of this process from which packets to `host` leave: what peers on that network can reach.
std::string address_towards(const std::string& host, int port);

/// What this host's own name resolves to, or the loopback address.
std::string address_of_this_host();

/// A socket that listens. The caller owns the descriptor.
struct Listener {
  int descriptor = -1;
  int port = 0;
};

/// Listens on `address` alone, not on every interface; port 0 takes a free one.
/// Throws ConfigError when that is not possible.
Listener listen_on(const std::string& address, int port);

}  // namespace tessera::comm
