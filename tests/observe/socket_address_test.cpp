#include "observe/metrics_server.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::observe {
namespace {

TEST(ListenAddress, IsTheLoopbackAddressByDefault) {
  EXPECT_EQ(to_string(parse_listen_address("9464")), "127.0.0.1:9464");
  EXPECT_EQ(to_string(parse_listen_address("0")), "127.0.0.1:0");
  EXPECT_EQ(to_string(parse_listen_address("localhost:80")), "127.0.0.1:80");
  EXPECT_EQ(to_string(parse_listen_address("10.1.2.3:80")), "10.1.2.3:80");
  EXPECT_EQ(to_string(parse_listen_address("[::1]:80")), "[::1]:80");
  EXPECT_EQ(parse_listen_address("[::1]:80").host, "::1");
}

TEST(ListenAddress, RefusesWhatIsNone) {
  for (const char* text : {"", ":", "x", "99999", "-1", "1.2.3:80", "host.example:80", "::1:80", "[]:80",
                           "1.2.3.4:", "1.2.3.4:80x", "0x50", "*:80"}) {
    const auto message = testing::message_of<ConfigError>([&] { parse_listen_address(text); });
    testing::expect_parts(message, {"Prometheus", "127.0.0.1:9464", std::string("\"") + text + "\""});
  }
}

TEST(ListenAddress, KnowsLoopback) {
  EXPECT_TRUE(is_loopback(parse_listen_address("127.0.0.1:1")));
  EXPECT_TRUE(is_loopback(parse_listen_address("[::1]:1")));
  EXPECT_FALSE(is_loopback(parse_listen_address("0.0.0.0:1")));
  EXPECT_FALSE(is_loopback(parse_listen_address("[::]:1")));
}

TEST(ListenAddress, SaysWhenThePortIsTaken) {
  ListenAddress first = parse_listen_address("0");
  const Descriptor listener = listen_at(first);
  EXPECT_GT(first.port, 0);
  ListenAddress second = first;
  const auto message = testing::message_of<CommError>([&] { listen_at(second); });
  testing::expect_parts(message, {to_string(first), "in use", "another port"});
}

}  // namespace
}  // namespace tessera::observe
