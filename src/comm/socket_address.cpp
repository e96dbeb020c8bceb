#include "comm/socket_address.h"

#include <tessera/core/error.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

namespace tessera::comm {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw ConfigError("the host \"" + host + "\" cannot be resolved: " + gai_strerror(code) +
                      "; set MASTER_ADDR to an address that every rank reaches");
  }
  return {found, &freeaddrinfo};
}

/// A socket that closes itself.
class Socket {
 public:
  Socket(int family, int type) : descriptor_(socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

std::string text_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "127.0.0.1";
  return host.data();
}

int port_of(int descriptor) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/// For hosts whose own name resolves to the loopback address, as Debian's installer arranges it.
std::optional<std::string> first_interface_address() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const bool usable =
        one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP) != 0;
    if (usable && !is_loopback(one->ifa_addr)) return text_of(one->ifa_addr, sizeof(sockaddr_in));
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> port_number(const std::string& text) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, port);
  if (fault != std::errc() || rest != end || port < 1 || port > 65535) return std::nullopt;
  return port;
}

bool is_loopback(const std::string& host) {
  const AddressList addresses = resolve(host, 0);
  // listen_on() uses the first address too.
  return is_loopback(addresses->ai_addr);
}

std::string address_towards(const std::string& host, int port) {
  const AddressList addresses = resolve(host, port);
  const Socket socket(addresses->ai_family, SOCK_DGRAM);
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  // Connecting a datagram socket sends nothing; it only chooses the route.
  if (connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return "127.0.0.1";
  }
  return text_of(reinterpret_cast<sockaddr*>(&local), length);
}

std::string address_of_this_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  try {
    const AddressList addresses = resolve(name.data(), 0);
    if (!is_loopback(addresses->ai_addr)) return text_of(addresses->ai_addr, addresses->ai_addrlen);
  } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): a host without a name may have an address
  }
  return first_interface_address().value_or("127.0.0.1");
}

Listener listen_on(const std::string& address, int port) {
  const AddressList addresses = resolve(address, port);
  Socket socket(addresses->ai_family, SOCK_STREAM);
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    throw ConfigError("rank 0 cannot listen on " + address + ":" + std::to_string(port) + ": " + std::strerror(errno) +
                      "; MASTER_ADDR must be an address of rank 0's host, MASTER_PORT a free port");
  }
  const int port_taken = port_of(socket.get());
  return {socket.release(), port_taken};
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

int Listener::release() { return std::exchange(descriptor_, -1); }

}  // namespace tessera::comm
