#include "launch/job_store.h"

#include <tessera/core/error.h>
#include <tessera/store/client.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

namespace tessera::launch {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw ConfigError("the rendezvous host \"" + host + "\" cannot be resolved: " + gai_strerror(code) +
                      "; name this host or one of its addresses");
  }
  return {found, &freeaddrinfo};
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

RendezvousPort::RendezvousPort(const std::string& address, int port) : address_(address) {
  const AddressList found = resolve(address, port);
  socket_ = Descriptor(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket_.get(), found->ai_addr, found->ai_addrlen) != 0) {
    throw ConfigError("the rendezvous cannot be at " + address + ":" + std::to_string(port) + ": " +
                      std::strerror(errno) + "; it needs an address of this host and a free port (port 0 finds one)");
  }
  port_ = port_of(socket_.get());
}

namespace {

constexpr auto kReady = std::future_status::ready;

}  // namespace

JobStore::JobStore(std::string address, int port, const store::Secret& secret)
    : address_(std::move(address)), secret_(secret), server_(address_, port, secret) {}

void JobStore::forget(int generation) {
  static constexpr std::chrono::seconds kConnectTimeout{5};
  // Removes only those that are done, because the destructor of any other would wait for its thread.
  std::erase_if(forgetting_, [](const auto& one) { return one.wait_for(std::chrono::seconds(0)) == kReady; });
  forgetting_.push_back(std::async(std::launch::async, [this, generation] {
    try {
      auto client = store::StoreClient::connect(address_, port(), secret_, kConnectTimeout);
      client.delete_prefix("tessera/" + std::to_string(generation) + "/");
    } catch (const Error&) {
      return;  // the keys only take room: no later generation reads them
    }
  }));
}

std::string endpoint_text(const std::string& host, int port) {
  const bool needs_brackets = host.find(':') != std::string::npos;
  return (needs_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace tessera::launch
