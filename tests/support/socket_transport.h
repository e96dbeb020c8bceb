#pragma once

#include <tessera/comm/transport.h>
#include <tessera/core/error.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

namespace tessera::testing {

/// A complete backend of one's own: messages over TCP on the loopback address, a socket for each pair of ranks.
///
/// A thread for each peer takes in whatever that peer sends, also what nobody has asked for yet. So a send needs no
/// receive to be posted: it may block until the bytes are written and still keep the promise that transfers that were
/// started together all finish.
class SocketTransport : public Transport {
 public:
  explicit SocketTransport(const GroupSpec& spec) : sockets_(static_cast<std::size_t>(spec.size), -1) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in here = loopback(0);
    socklen_t length = sizeof(here);
    check(bind(listener, reinterpret_cast<sockaddr*>(&here), length) == 0 && listen(listener, spec.size) == 0);
    check(getsockname(listener, reinterpret_cast<sockaddr*>(&here), &length) == 0);
    spec.set(std::to_string(spec.rank), std::to_string(ntohs(here.sin_port)));
    for (int peer = 0; peer < spec.rank; ++peer) {
      const sockaddr_in there = loopback(std::stoi(spec.get(std::to_string(peer))));
      socket_of(peer) = socket(AF_INET, SOCK_STREAM, 0);
      check(connect(socket_of(peer), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0);
      write_all(socket_of(peer), &spec.rank, sizeof(spec.rank));
    }
    for (int coming = spec.rank + 1; coming < spec.size; ++coming) {
      const int accepted = accept(listener, nullptr, nullptr);
      int peer = 0;
      check(accepted >= 0 && read_all(accepted, &peer, sizeof(peer)));
      socket_of(peer) = accepted;
    }
    close(listener);
    for (int peer = 0; peer < spec.size; ++peer) {
      if (peer != spec.rank) readers_.emplace_back([this, peer] { take_in(peer); });
    }
  }

  ~SocketTransport() override {
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);  // ends the readers, here and at the peers
    for (auto& reader : readers_) reader.join();
    for (const int socket : sockets_) close(socket);
  }

  std::string name() const override { return "socket"; }

  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override {
    const std::lock_guard lock(sending_);
    const Header header{channel, data.size()};
    write_all(socket_of(peer), &header, sizeof(header));
    write_all(socket_of(peer), data.data(), data.size());
    return std::make_unique<Sent>();
  }

  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override {
    const std::lock_guard lock(receiving_);
    // The k-th receive of a channel takes the k-th message, in whatever order they are waited for.
    return std::make_unique<Receive>(*this, data, Ticket{peer, channel, num_posted_[{peer, channel}]++});
  }

 private:
  struct Header {
    int channel;
    std::size_t num_bytes;
  };
  using Stream = std::pair<int, int>;        // peer, channel
  using Ticket = std::tuple<int, int, int>;  // peer, channel, number

  struct Sent : Transfer {
    bool test() override { return true; }
    void wait(std::chrono::steady_clock::time_point /*deadline*/) override {}
  };

  struct Receive : Transfer {
    Receive(SocketTransport& from, std::span<std::byte> place, Ticket number)
        : transport(from), data(place), ticket(std::move(number)) {}

    bool test() override {
      const std::lock_guard lock(transport.receiving_);
      return take();
    }
    void wait(std::chrono::steady_clock::time_point deadline) override {
      std::unique_lock lock(transport.receiving_);
      const int peer = std::get<0>(ticket);
      const auto over = [&] { return take() || transport.lost_.contains(peer); };
      const bool in_time = transport.arrived_.wait_until(lock, deadline, over);
      if (done) return;
      throw CommError("rank " + std::to_string(peer) +
                      (in_time ? " has closed its connection" : " sent nothing in time"));
    }
    bool take() {
      const auto message = transport.inbox_.find(ticket);
      if (done || message == transport.inbox_.end()) return done;
      if (message->second.size() != data.size()) {
        throw ConfigError("expected " + std::to_string(data.size()) + " bytes from rank " +
                          std::to_string(std::get<0>(ticket)) + ", found " + std::to_string(message->second.size()));
      }
      std::copy(message->second.begin(), message->second.end(), data.begin());
      transport.inbox_.erase(message);
      return done = true;
    }

    SocketTransport& transport;
    std::span<std::byte> data;
    Ticket ticket;
    bool done = false;
  };

  void take_in(int peer) {
    Header header{};
    while (read_all(socket_of(peer), &header, sizeof(header))) {
      std::vector<std::byte> message(header.num_bytes);
      if (!read_all(socket_of(peer), message.data(), message.size())) break;
      const std::lock_guard lock(receiving_);
      inbox_[{peer, header.channel, num_arrived_[{peer, header.channel}]++}] = std::move(message);
      arrived_.notify_all();
    }
    const std::lock_guard lock(receiving_);
    lost_.insert(peer);
    arrived_.notify_all();
  }

  int& socket_of(int peer) { return sockets_[static_cast<std::size_t>(peer)]; }

  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static void check(bool succeeded) {
    if (!succeeded) throw CommError(std::string("socket: ") + std::strerror(errno));
  }
  static void write_all(int socket, const void* data, std::size_t num_bytes) {
    for (const auto* next = static_cast<const std::byte*>(data); num_bytes > 0;) {
      const ssize_t count = ::send(socket, next, num_bytes, MSG_NOSIGNAL);
      check(count > 0);
      next += count;
      num_bytes -= static_cast<std::size_t>(count);
    }
  }
  /// False when the peer is gone.
  static bool read_all(int socket, void* data, std::size_t num_bytes) {
    for (auto* next = static_cast<std::byte*>(data); num_bytes > 0;) {
      const ssize_t count = ::recv(socket, next, num_bytes, 0);
      if (count <= 0) return false;
      next += count;
      num_bytes -= static_cast<std::size_t>(count);
    }
    return true;
  }

  std::vector<int> sockets_;
  std::vector<std::thread> readers_;
  std::mutex sending_;
  std::mutex receiving_;  // guards what follows
  std::condition_variable arrived_;
  std::map<Stream, int> num_posted_;
  std::map<Stream, int> num_arrived_;
  std::map<Ticket, std::vector<std::byte>> inbox_;
  std::set<int> lost_;
};

}  // namespace tessera::testing
