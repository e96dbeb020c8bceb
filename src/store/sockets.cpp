#include "store/sockets.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace tessera::store {

AddressList resolve(const std::string& host, int port) {
  if (host.empty() || port < 0 || port > 65535) {
    throw ConfigError("the store needs a host and a port from 0 to 65535; found \"" + host + "\" and " +
                      std::to_string(port));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw ConfigError("the store's host \"" + host + "\" cannot be resolved: " + gai_strerror(code) +
                      "; give an address that every rank reaches");
  }
  return {found, &freeaddrinfo};
}

Descriptor listen_on(const std::string& address, int port) {
  const AddressList addresses = resolve(address, port);
  Descriptor listener(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    throw ConfigError("the store cannot listen on " + address + ":" + std::to_string(port) + ": " +
                      std::strerror(errno) + "; give an address of this host and a free port, or port 0");
  }
  return listener;
}

void require_listening(const Descriptor& listener) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  const int flags = fcntl(listener.get(), F_GETFL);
  if (getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0 ||
      fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw ConfigError("the store was handed descriptor " + std::to_string(listener.get()) +
                      ", which is no listening socket; call bind() and listen() on it first");
  }
}

int port_of(const Descriptor& bound) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(bound.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

void send_without_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Descriptor connect_to(const addrinfo& address, std::chrono::steady_clock::time_point deadline) {
  Descriptor descriptor(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!descriptor) return {};
  send_without_delay(descriptor.get());
  if (connect(descriptor.get(), address.ai_addr, address.ai_addrlen) == 0) return descriptor;
  if (errno != EINPROGRESS) return {};
  pollfd waiting{descriptor.get(), POLLOUT, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, poll_milliseconds(deadline));
  } while (ready < 0 && errno == EINTR);
  int error = ETIMEDOUT;
  socklen_t length = sizeof(error);
  if (ready > 0) getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return descriptor;
  descriptor.reset();
  errno = error;
  return {};
}

int poll_milliseconds(std::chrono::steady_clock::time_point then, std::chrono::steady_clock::time_point now) {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(then - now);
  return static_cast<int>(std::clamp<std::int64_t>(rest.count(), 0, INT_MAX));
}

}  // namespace tessera::store
