#pragma once

#include <tessera/core/descriptor.h>
#include <netdb.h>

#include <chrono>
#include <memory>
#include <string>

namespace tessera::store {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Blocks: as long as the host's resolver does. Throws ConfigError when the host has no address.
AddressList resolve(const std::string& host, int port);

/// Listens on that address alone; port 0 takes a free one. Non-blocking. Throws ConfigError when that is not possible.
Descriptor listen_on(const std::string& address, int port);

/// Throws ConfigError unless it is a socket that listens; makes it non-blocking.
void require_listening(const Descriptor& listener);

int port_of(const Descriptor& bound);

/// Small messages leave at once.
void send_without_delay(int descriptor);

/// A connected, non-blocking socket, or none when the deadline passes or nothing listens there; `errno` then says why.
Descriptor connect_to(const addrinfo& address, std::chrono::steady_clock::time_point deadline);

/// The milliseconds until `then`, for poll(): rounded up, at least 0.
int poll_milliseconds(std::chrono::steady_clock::time_point then,
                      std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

}  // namespace tessera::store
