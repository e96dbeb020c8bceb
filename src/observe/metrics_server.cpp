#include "observe/metrics_server.h"

#include <tessera/core/error.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "observe/quiet_thread.h"

namespace tessera::observe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(3);
constexpr std::size_t kMaxDrainedBytes = std::size_t{64} << 10;

std::string response(std::string_view status, std::string_view type, const std::string& body, bool with_body = true) {
  std::string text = "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: " + std::string(type) +
                     "\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n";
  return with_body ? text + body : text;
}

class Connection {
 public:
  Connection(int socket, Clock::time_point now) : socket_(socket), deadline_(now + kPatience) {}

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
      // Closing with bytes unread would tear the answer from the client's hands.
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

/// Who may still come in this second.
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
      // The listener is left alone when the budget is spent: the system lets clients wait.
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
    // Spent also when it fails: without descriptors left this would go round and round.
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
