#include "observe/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <vector>

namespace tessera::observe {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() { page_->set("tessera_loss 2.5\n"); }

  Descriptor connect() const {
    Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server_.address().port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return client;
  }

  static void send(const Descriptor& client, const std::string& text) {
    ::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  /// All that comes until the server closes; what came when it does not close in time, with a failure.
  static std::string answer(const Descriptor& client) {
    std::string text;
    std::array<char, 4096> block{};
    while (true) {
      pollfd entry{client.get(), POLLIN, 0};
      if (poll(&entry, 1, 20'000) != 1) {
        ADD_FAILURE() << "the server does not close";
        return text;
      }
      const ssize_t count = recv(client.get(), block.data(), block.size(), 0);
      if (count <= 0) return text;
      text.append(block.data(), static_cast<std::size_t>(count));
    }
  }

  std::string ask(const std::string& request) const {
    const Descriptor client = connect();
    send(client, request);
    return answer(client);
  }

  static bool is_open(const Descriptor& client) {
    pollfd entry{client.get(), POLLIN, 0};
    return poll(&entry, 1, 0) == 0;
  }

  /// The server sees the new time when something happens to one of its connections.
  void move_clock(std::chrono::milliseconds time) { passed_ = passed_.load() + time; }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<std::chrono::milliseconds> passed_ = std::chrono::milliseconds(0);
  std::shared_ptr<MetricsPage> page_ = std::make_shared<MetricsPage>();
  MetricsServer server_{parse_listen_address("0"), page_, [this] { return start_ + passed_.load(); }};
};

TEST_F(MetricsServerTest, AnswersWithTheLatestPage) {
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("\r\n\r\ntessera_loss 2.5\n"));
  page_->set("tessera_loss 2.25\n");
  const std::string text = ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(text, HasSubstr("Content-Length: 18\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\ntessera_loss 2.25\n"));
}

TEST_F(MetricsServerTest, TakesARequestInPieces) {
  const Descriptor client = connect();
  for (const char* piece : {"GET /met", "rics HTTP/1.1\r", "\n\r", "\n"}) send(client, piece);
  EXPECT_THAT(answer(client), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(MetricsServerTest, RefusesEverythingElse) {
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("GET /metrics/../x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("GET /metrics\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST_F(MetricsServerTest, EndsARequestThatIsTooLong) {
  const std::string text = ask("GET /metrics HTTP/1.1\r\n" + std::string(2 * MetricsServer::kMaxRequestBytes, 'x'));
  EXPECT_THAT(text, StartsWith("HTTP/1.1 431"));
}

TEST_F(MetricsServerTest, ClosesOnAClientThatSaysNothing) {
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  const Descriptor silent = connect();
  // Who comes later is accepted later, so the other has been.
  EXPECT_THAT(ask(request), StartsWith("HTTP/1.1 200 OK"));
  move_clock(std::chrono::milliseconds(2900));
  EXPECT_THAT(ask(request), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_TRUE(is_open(silent));
  move_clock(std::chrono::milliseconds(100));
  EXPECT_THAT(ask(request), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(answer(silent), "");
}

TEST_F(MetricsServerTest, AnswersThoughOthersKeepAllConnections) {
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 2 * MetricsServer::kMaxConnections; ++i) {
    silent.push_back(connect());
    // The answer tells that all were let in. Of more than may wait outside, the system delays some for a second.
    if (i % 8 == 0) ask("GET /metrics HTTP/1.1\r\n\r\n");
  }
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 OK"));
  // The first ones had to make room.
  EXPECT_EQ(answer(silent.front()), "");
  EXPECT_TRUE(is_open(silent.back()));
}

TEST_F(MetricsServerTest, AnswersAgainAfterAFlood) {
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  for (int i = 2; i < MetricsServer::kMaxAcceptsPerSecond; i += 2) {
    connect();
    ask(request);
  }
  connect();
  const Descriptor last = connect();
  const Descriptor client = connect();
  send(client, request);
  pollfd entry{client.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 50), 0) << "one more than may come in a second was let in";
  move_clock(std::chrono::milliseconds(1000));
  send(last, "GET");
  EXPECT_THAT(answer(client), StartsWith("HTTP/1.1 200 OK"));
}

}  // namespace
}  // namespace tessera::observe
