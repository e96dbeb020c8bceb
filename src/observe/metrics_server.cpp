#include "observe/metrics_server.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "observe/output_file.h"

namespace tessera::observe {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError(
      "expected a port, as 9464, or an address and a port, as 127.0.0.1:9464 or [::1]:9464, for "
      "Prometheus; found \"" +
      text + "\"");
}

/// Converts the address to the system's form and returns its length; 0: it is not an address.
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

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::seconds(3);
constexpr std::size_t kMaxDrainedBytes = std::size_t{64} << 10;

std::string response(std::string_view status, std::string_view type, const std::string& body, bool with_body = true) {
  std::string text = "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: " + std::string(type) +
                     "\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n";
  return with_body ? text + body : text;
}

class Connection {
 public:
  Connection(int socket, Clock::time_point now) : socket_(socket), deadline_(now + kTimeout) {}

  pollfd wants() const { return {socket_.get(), static_cast<short>(answer_.empty() ? POLLIN : POLLOUT), 0}; }
  Clock::time_point deadline() const { return deadline_; }

  /// False when the connection is over.
  bool go_on(const MetricsPage& page) {
    if (!answer_.empty()) return send_some();
    std::array<char, 4096> block{};
    const ssize_t count = recv(socket_.get(), block.data(), block.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    if (answered_) {
      // Closing with unread bytes would reset the connection, and the client could lose the answer.
      num_drained_ += static_cast<std::size_t>(count);
      return num_drained_ <= kMaxDrainedBytes;
    }
    request_.append(block.data(), static_cast<std::size_t>(count));
    const bool is_whole = request_.find("\r\n\r\n") != std::string::npos || request_.find("\n\n") != std::string::npos;
    if (is_whole) {
      answer_ = metrics_response(request_, page);
    } else if (request_.size() > MetricsServer::kMaxRequestBytes) {
      answer_ = response("431 Request Header Fields Too Large", "text/plain", "the request is too long\n");
    }
    return true;
  }

 private:
  bool send_some() {
    const ssize_t count = send(socket_.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    answer_.erase(0, static_cast<std::size_t>(count));
    if (!answer_.empty()) return true;
    answered_ = true;
    return shutdown(socket_.get(), SHUT_WR) == 0;
  }

  Descriptor socket_;
  Clock::time_point deadline_;
  std::string request_;
  std::string answer_;
  bool answered_ = false;
  std::size_t num_drained_ = 0;
};

/// How many connections may still be accepted in this second.
class AcceptBudget {
 public:
  bool allows(Clock::time_point now) {
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      num_accepted_ = 0;
    }
    return num_accepted_ < MetricsServer::kMaxAcceptsPerSecond;
  }
  void spend() { ++num_accepted_; }

 private:
  Clock::time_point second_;
  int num_accepted_ = 0;
};

}  // namespace

std::string metrics_response(const std::string& request, const MetricsPage& page) {
  constexpr std::string_view kText = "text/plain";
  const std::string_view line = std::string_view(request).substr(0, request.find_first_of("\r\n"));
  const auto method_end = line.find(' ');
  const auto target_end = line.find(' ', method_end + 1);
  if (method_end == std::string_view::npos || target_end == std::string_view::npos ||
      !line.substr(target_end + 1).starts_with("HTTP/1.")) {
    return response("400 Bad Request", kText, "expected an HTTP/1 request\n");
  }
  const std::string_view method = line.substr(0, method_end);
  std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  target = target.substr(0, target.find('?'));
  if (method != "GET" && method != "HEAD") return response("405 Method Not Allowed", kText, "only GET and HEAD\n");
  if (target != "/metrics") return response("404 Not Found", kText, "the figures are at /metrics\n", method == "GET");
  return response("200 OK", "text/plain; version=0.0.4; charset=utf-8", page.get(), method == "GET");
}

struct MetricsServer::State {
  State(ListenAddress place, std::shared_ptr<const MetricsPage> shown, TimeSource given_time)
      : address(std::move(place)),
        listener(listen_at(address)),
        stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        page(std::move(shown)),
        time(std::move(given_time)) {
    if (!stop) throw CommError("the system gives no descriptor for the endpoint of Prometheus");
    thread = start_quiet_thread("tessera_metrics", [this] { serve(); });
  }

  void serve() {
    while (true) {
      // When the budget is spent, the listener is not polled: the system queues the clients.
      const bool open = budget.allows(time());
      std::vector<pollfd> set = {{stop.get(), POLLIN, 0}, {open ? listener.get() : -1, POLLIN, 0}};
      for (const Connection& connection : connections) set.push_back(connection.wants());
      constexpr int kTickMilliseconds = 1000;
      const bool idle = connections.empty() && open;
      if (poll(set.data(), set.size(), idle ? -1 : kTickMilliseconds) < 0 && errno != EINTR) return;
      if (set[0].revents != 0) return;
      go_on_with(set);
      if (set[1].revents != 0) accept_one();
    }
  }

  void go_on_with(const std::vector<pollfd>& set) {
    const auto now = time();
    std::vector<Connection> kept;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      const bool has_news = set[i + 2].revents != 0;
      const bool in_time = now < connections[i].deadline();
      if (in_time && (!has_news || connections[i].go_on(*page))) kept.push_back(std::move(connections[i]));
    }
    connections = std::move(kept);
  }

  void accept_one() {
    const int client = accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    // Also when accept4() fails: with no descriptors left, this loop would spin.
    budget.spend();
    if (client < 0) return;
    if (connections.size() == kMaxConnections) connections.erase(connections.begin());
    connections.emplace_back(client, time());
  }

  ListenAddress address;
  Descriptor listener;
  Descriptor stop;
  std::shared_ptr<const MetricsPage> page;
  TimeSource time;
  AcceptBudget budget;
  std::vector<Connection> connections;  // oldest first
  std::thread thread;
};

MetricsServer::MetricsServer(ListenAddress address, std::shared_ptr<const MetricsPage> page, TimeSource time)
    : state_(std::make_unique<State>(std::move(address), std::move(page), std::move(time))) {}

MetricsServer::~MetricsServer() {
  eventfd_write(state_->stop.get(), 1);
  state_->thread.join();
}

const ListenAddress& MetricsServer::address() const { return state_->address; }

}  // namespace tessera::observe
