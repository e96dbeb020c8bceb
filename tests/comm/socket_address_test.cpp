#include "comm/socket_address.h"

#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

TEST(SocketAddress, KnowsWhatOtherHostsCannotReach) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"192.0.2.1", "0.0.0.0", "2001:db8::1", "::"}) EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(SocketAddress, TakesPortsThatExist) {
  EXPECT_EQ(port_number("1"), 1);
  EXPECT_EQ(port_number("65535"), 65535);
  for (const char* text : {"", "0", "65536", "-1", "+1", " 1", "1 ", "0x1", "99999999999999999999"}) {
    EXPECT_FALSE(port_number(text).has_value()) << text;
  }
}

TEST(SocketAddress, OfThisHostCanBeListenedOn) {
  Listener listener = listen_on(address_of_this_host(), 0);
  EXPECT_GT(listener.port(), 0);
}

}  // namespace
}  // namespace tessera::comm
