#include "store/connector.h"

#include <tessera/core/error.h>
#include <tessera/store/client.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "store/deadline.h"
#include "store/protocol.h"
#include "store/sockets.h"

namespace tessera::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenAttempts{5};
/// An attempt that takes longer is given up and made again: the host, or the store, may have dropped it.
constexpr std::chrono::milliseconds kAttempt{2500};

enum class Outcome { kConnected, kNotReached, kRefused };

/// Sends what the handshake has to say; false when the connection has ended.
bool send_output(int descriptor, FrameStream& stream) {
  for (auto bytes = stream.output(); !bytes.empty(); bytes = stream.output()) {
    const ssize_t count = send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // A handshake is smaller than any socket's buffer.
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) stream.sent(static_cast<std::size_t>(count));
  }
  return true;
}

/// Waits for the peer and takes its bytes; false when it has none to give before the deadline, or has gone.
bool receive_input(int descriptor, FrameStream& stream, Clock::time_point deadline) {
  std::array<char, 4096> block{};
  pollfd waiting{descriptor, POLLIN, 0};
  const int ready = poll(&waiting, 1, poll_milliseconds(deadline));
  if (ready < 0) return errno == EINTR;
  if (ready == 0) {
    errno = ETIMEDOUT;
    return false;
  }
  const ssize_t count = recv(descriptor, block.data(), block.size(), 0);
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  if (count == 0) {
    errno = ECONNRESET;
    return false;
  }
  stream.receive({block.data(), static_cast<std::size_t>(count)});
  return true;
}

/// One client's attempts to reach one store.
class Attempts {
 public:
  Attempts(const std::string& address, int port, const SecretSource& source, Clock::time_point deadline)
      : source_(source), deadline_(deadline), addresses_(resolve(address, port)) {}

  Outcome attempt() {
    const auto secret = source_();
    if (!secret) {
      why_ = "no secret was found for it";
      return Outcome::kNotReached;
    }
    // Only a new secret needs a new context, which takes longer to make than a connection.
    if (!result_.context || !(result_.context->secret() == *secret)) {
      result_.context = std::make_unique<ChannelContext>(ChannelRole::kClient, *secret);
    }
    for (const addrinfo* address = addresses_.get(); address != nullptr; address = address->ai_next) {
      const Outcome outcome = attempt(*address);
      if (outcome != Outcome::kNotReached) return outcome;
    }
    return Outcome::kNotReached;
  }

  const std::string& why() const { return why_; }
  Connected take() { return std::move(result_); }

 private:
  Outcome attempt(const addrinfo& address) {
    const auto deadline = std::min(deadline_, Clock::now() + kAttempt);
    Descriptor socket = connect_to(address, deadline);
    if (!socket) return not_reached();
    auto stream = std::make_unique<FrameStream>(*result_.context);
    // The handshake ends here before it ends there: a server that is full may still drop us. Its answer settles it.
    stream->queue(encode(Request{}));
    while (!stream->next_frame() && !stream->ended()) {
      if (!send_output(socket.get(), *stream) || !receive_input(socket.get(), *stream, deadline)) return not_reached();
    }
    if (stream->ended()) {
      why_ = "who listens there does not have this secret (" + stream->reason() + ")";
      return Outcome::kRefused;
    }
    result_.socket = std::move(socket);
    result_.stream = std::move(stream);
    return Outcome::kConnected;
  }

  Outcome not_reached() {
    why_ = std::strerror(errno);
    return Outcome::kNotReached;
  }

  const SecretSource& source_;
  Clock::time_point deadline_;
  AddressList addresses_;
  Connected result_;
  std::string why_;
};

}  // namespace

Connected connect_to_store(const std::string& address, int port, const SecretSource& secret, bool retry_refusals,
                           std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  Attempts attempts(address, port, secret, deadline);
  const std::string place = address + ":" + std::to_string(port);
  do {
    const Outcome outcome = attempts.attempt();
    if (outcome == Outcome::kConnected) return attempts.take();
    if (outcome == Outcome::kRefused && !retry_refusals) {
      throw CommError("the store at " + place + " cannot be used: " + attempts.why() +
                      "; give all processes of the job the same secret, and check that no other job has the port");
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kBetweenAttempts, deadline - Clock::now()));
  } while (Clock::now() < deadline);
  throw StoreNotReached("the store at " + place + " was not reached within " + std::to_string(timeout.count()) +
                        " ms: " + attempts.why() +
                        "; is the process that hosts it (rank 0 or the launcher) running, and is the address right?");
}

}  // namespace tessera::store
