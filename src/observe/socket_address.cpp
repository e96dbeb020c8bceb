#include "observe/socket_address.h"

#include <tessera/core/error.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera::observe {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError(
      "expected a port, as 9464, or an address and a port, as 127.0.0.1:9464 or [::1]:9464, for "
      "Prometheus; found \"" +
      text + "\"");
}

/// The address as the system wants it, and how long that is.
socklen_t fill(const ListenAddress& address, sockaddr_storage& storage) {
  const auto port = htons(static_cast<std::uint16_t>(address.port));
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = port;
    return sizeof(sockaddr_in);
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = port;
    return sizeof(sockaddr_in6);
  }
  return 0;
}

int port_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

}  // namespace

ListenAddress parse_listen_address(const std::string& text) {
  ListenAddress address{"127.0.0.1", 0};
  std::string_view port = text;
  const auto colon = text.rfind(':');
  if (colon != std::string::npos) {
    port = std::string_view(text).substr(colon + 1);
    address.host = text.substr(0, colon);
    const bool bracketed = address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
    if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
    if (!bracketed && address.host.find(':') != std::string::npos) refuse(text);
    if (address.host == "localhost") address.host = "127.0.0.1";
  }
  constexpr int kMaxPort = 65535;
  const auto [end, fault] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_port = fault == std::errc() && end == port.data() + port.size() && !port.empty();
  sockaddr_storage storage{};
  if (!is_port || address.port < 0 || address.port > kMaxPort || fill(address, storage) == 0) refuse(text);
  return address;
}

bool is_loopback(const ListenAddress& address) { return address.host.starts_with("127.") || address.host == "::1"; }

Descriptor listen_at(ListenAddress& address) {
  sockaddr_storage storage{};
  socklen_t length = fill(address, storage);
  constexpr int kBacklog = 16;
  Descriptor listener(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const bool listens = listener && setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                       bind(listener.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0 &&
                       listen(listener.get(), kBacklog) == 0 &&
                       getsockname(listener.get(), reinterpret_cast<sockaddr*>(&storage), &length) == 0;
  if (!listens) {
    throw CommError("nothing can listen at " + to_string(address) + " for Prometheus: " + std::strerror(errno) +
                    "; take another port, or 0 for a free one");
  }
  address.port = port_of(storage);
  return listener;
}

std::string to_string(const ListenAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace tessera::observe
