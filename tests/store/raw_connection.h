#pragma once

#include <tessera/core/descriptor.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

#include "store/sockets.h"

namespace tessera::testing {

/// A TCP connection to the loopback address by somebody who does not play by the rules.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("the loopback address does not take a connection");
    }
  }

  /// The peer may have gone: that is not this side's problem.
  void send(const std::string& bytes) const {
    [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  /// What comes within the time, at most; `ended` tells whether the peer closed the connection.
  std::string receive(std::chrono::milliseconds time, bool* ended = nullptr) const {
    const auto deadline = std::chrono::steady_clock::now() + time;
    std::string all;
    std::array<char, 4096> block{};
    if (ended != nullptr) *ended = false;
    while (true) {
      pollfd waiting{socket_.get(), POLLIN, 0};
      if (poll(&waiting, 1, store::poll_milliseconds(deadline)) <= 0) return all;
      const ssize_t count = recv(socket_.get(), block.data(), block.size(), 0);
      if (count <= 0) {
        if (ended != nullptr) *ended = true;
        return all;
      }
      all.append(block.data(), static_cast<std::size_t>(count));
    }
  }

  /// Blocks: until the peer has closed the connection; false when it has not in time.
  bool ends_within(std::chrono::milliseconds time) const {
    bool ended = false;
    receive(time, &ended);
    return ended;
  }

  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
};

}  // namespace tessera::testing
