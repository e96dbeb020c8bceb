#pragma once

#include <tessera/core/descriptor.h>

#include <string>

namespace tessera::observe {

/// Where to listen.
struct ListenAddress {
  std::string host;  ///< numeric: "127.0.0.1", "::1"
  int port = 0;      ///< 0: any that is free
};

/// "9464" (of the loopback address), "127.0.0.1:9464", "[::1]:9464", "localhost:9464". Names other than localhost are
/// not looked up: which interface is meant should be plain. Throws ConfigError.
ListenAddress parse_listen_address(const std::string& text);

bool is_loopback(const ListenAddress& address);

/// A socket that listens, and does not block. `address` gets its real port. Throws CommError.
Descriptor listen_at(ListenAddress& address);

/// "127.0.0.1:9464", "[::1]:9464"
std::string to_string(const ListenAddress& address);

}  // namespace tessera::observe
