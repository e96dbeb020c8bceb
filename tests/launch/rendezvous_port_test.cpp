#include "launch/job_store.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/socket.h>

#include <set>

#include "support/error_message.h"

namespace tessera::launch {
namespace {

/// A socket on the loopback address, bound as rank 0 does it; none when that is refused.
Descriptor bind_as_rank(int port) {
  Descriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(descriptor.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return Descriptor();
  return descriptor;
}

int port_of(const Descriptor& descriptor) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

TEST(RendezvousPort, LetsARankListenOnIt) {
  const RendezvousPort port;
  for (int generation = 0; generation < 3; ++generation) {
    const Descriptor rank = bind_as_rank(port.port());
    ASSERT_TRUE(rank);
    EXPECT_EQ(listen(rank.get(), 8), 0);
  }
}

TEST(RendezvousPort, IsGivenToNobodyElse) {
  const RendezvousPort held;
  std::vector<Descriptor> others;
  for (int i = 0; i < 500; ++i) {
    others.push_back(bind_as_rank(0));
    ASSERT_NE(port_of(others.back()), held.port());
  }
  std::vector<RendezvousPort> launchers(200);
  std::set<int> ports{held.port()};
  for (const RendezvousPort& port : launchers) ports.insert(port.port());
  EXPECT_EQ(ports.size(), launchers.size() + 1);
}

TEST(RendezvousPort, RefusesAPortThatIsTaken) {
  const Descriptor taken = bind_as_rank(0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  const int port = port_of(taken);
  testing::expect_parts(testing::message_of<ConfigError>([&] { const RendezvousPort again("127.0.0.1", port); }),
                        {"127.0.0.1:" + std::to_string(port), "in use"});
}

TEST(RendezvousPort, RefusesAddressesOfOtherHosts) {
  testing::expect_parts(testing::message_of<ConfigError>([] { const RendezvousPort port("192.0.2.1", 0); }),
                        {"192.0.2.1", "an address of this host"});
}

}  // namespace
}  // namespace tessera::launch
