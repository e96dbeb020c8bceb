// Interfaces and addresses.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#include "tessera/doctor/checks.h"

namespace tessera::doctor {
namespace {

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (bytes == nullptr || inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr) return "";
  return text.data();
}

}  // namespace

Checks check_network() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return {{"network", Health::kFail, std::strerror(errno), "let the container use netlink"}};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  bool loopback = false;
  std::map<std::string, std::string> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = address_text(entry->ifa_addr);
    if (address.empty()) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) {
      loopback = loopback || address == "127.0.0.1";
    } else {
      addresses[entry->ifa_name] += " " + address;
    }
  }
  Check local{"loopback", Health::kOk, "127.0.0.1 is up", ""};
  if (!loopback) local = {"loopback", Health::kFail, "127.0.0.1 is not up", "as root: ip link set lo up"};
  Check network{"network", Health::kOk, "", ""};
  for (const auto& [name, text] : addresses) network.found += (network.found.empty() ? "" : "; ") + name + text;
  if (addresses.empty()) {
    network = {"network", Health::kWarn, "no interface with an address is up but the loopback",
               "fine for one node; for several, connect this machine"};
  }
  return {local, network};
}

}  // namespace tessera::doctor
