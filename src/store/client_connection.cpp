#include "store/client_connection.h"

#include <tessera/core/error.h>
#include <tessera/store/client.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "store/clocks.h"
#include "store/protocol.h"
#include "store/sockets.h"

namespace tessera::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenAttempts{5};
/// An attempt that takes longer is given up and repeated: the host, or the store, may have dropped it.
constexpr std::chrono::milliseconds kAttempt{2500};

enum class Outcome { kConnected, kNotReached, kRefused };

/// Sends the output of the handshake; false when the connection has ended.
bool send_output(int descriptor, FrameStream& stream) {
  for (auto bytes = stream.output(); !bytes.empty(); bytes = stream.output()) {
    const ssize_t count = send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // A handshake is smaller than any socket's buffer.
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) stream.sent(static_cast<std::size_t>(count));
  }
  return true;
}

/// Waits for bytes of the peer and takes them; false when none come before the deadline, or the connection has ended.
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
    // The handshake ends on this side first, and a server that is full may still drop the connection. So this waits for
    // the answer to a ping.
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

namespace {

constexpr std::uint64_t kPingId = 0;

}  // namespace

ClientConnection::ClientConnection(Connected connected, std::string place, const ClientOptions& options)
    : place_(std::move(place)),
      options_(options),
      connected_(std::move(connected)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_heard_(Clock::now()),
      last_sent_(last_heard_) {
  if (!wake_) {
    throw CommError(std::string("the store's client gets no file descriptor: ") + std::strerror(errno) +
                    "; raise the limit (ulimit -n)");
  }
  send_output();  // the last message of the handshake
  thread_ = start_without_signals([this] { run(); });
}

ClientConnection::~ClientConnection() {
  close();
  thread_.join();
}

Response ClientConnection::call(Operation operation, std::int64_t number, std::vector<std::string> fields,
                                Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (failed_) throw_failure();
  const std::uint64_t id = next_id_++;
  Call call;
  send_request(Request{id, operation, number, std::move(fields)});
  calls_.emplace(id, &call);
  const auto finished = [&] { return call.response.has_value() || failed_; };
  if (!call.answered.wait_until(lock, deadline, finished)) {
    send_request(Request{0, Operation::kCancel, static_cast<std::int64_t>(id), {}});
    call.answered.wait(lock, finished);
  }
  calls_.erase(id);
  if (!call.response) throw_failure();
  return std::move(*call.response);
}

void ClientConnection::close() {
  const std::lock_guard lock(mutex_);
  fail("it was closed by this process");
  wake();
}

void ClientConnection::run() {
  std::array<pollfd, 2> watched{{{connected_.socket.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  Clock::time_point next_look;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) break;
      next_look = awake_.real(last_heard_ + options_.silence_limit);
      // While the socket takes nothing, a ping could not be sent either.
      if (!blocked_) next_look = std::min(next_look, last_sent_ + options_.ping_interval);
      watched[0].events = static_cast<short>(POLLIN | (blocked_ ? POLLOUT : 0));
    }
    const int sleep = poll_milliseconds(next_look);
    poll(watched.data(), watched.size(), sleep);
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t drained = read(wake_.get(), &wakes, sizeof(wakes));
    const std::lock_guard lock(mutex_);
    awake_.woke(std::chrono::milliseconds(sleep));
    if ((watched[0].revents & POLLOUT) != 0) {
      // The server is receiving a large request slowly, which is a sign of life too.
      last_heard_ = awake_.now();
      send_output();
    }
    // See Note [Silence is judged by what was there to be read].
    const auto now = awake_.now();
    receive_some();
    ping_if_idle();
    fail_if_silent(now);
  }
  // Shut down only here, where no thread polls the socket any more. The server sees the end, and leases fire.
  shutdown(connected_.socket.get(), SHUT_RDWR);
}

void ClientConnection::receive_some() {
  std::array<char, std::size_t{64} << 10> block;  // NOLINT(*-member-init): filled by the next call
  while (!failed_) {
    const ssize_t count = recv(connected_.socket.get(), block.data(), block.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count < 0) return fail(std::strerror(errno));
    if (count == 0) return fail("its server ended the connection");
    last_heard_ = awake_.now();
    connected_.stream->receive({block.data(), static_cast<std::size_t>(count)});
    take_frames();
    send_output();
    if (connected_.stream->ended()) return fail(connected_.stream->reason());
  }
}

void ClientConnection::take_frames() {
  while (const auto frame = connected_.stream->next_frame()) {
    auto response = decode_response(*frame);
    if (!response) return fail("its server sent what is no answer");
    const auto found = calls_.find(response->id);
    if (found == calls_.end()) continue;  // a ping's
    found->second->response = std::move(*response);
    found->second->answered.notify_one();
  }
}

void ClientConnection::send_request(const Request& request) {
  connected_.stream->queue(encode(request));
  send_output();
  if (blocked_) wake();
}

void ClientConnection::send_output() {
  blocked_ = false;
  for (auto bytes = connected_.stream->output(); !bytes.empty(); bytes = connected_.stream->output()) {
    const ssize_t count = send(connected_.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      blocked_ = true;
      return;
    }
    // The receiving thread will notice the end, after it has read what the server may have sent before.
    if (count < 0) return;
    last_sent_ = Clock::now();
    connected_.stream->sent(static_cast<std::size_t>(count));
  }
}

void ClientConnection::ping_if_idle() {
  if (failed_ || blocked_ || Clock::now() - last_sent_ < options_.ping_interval) return;
  send_request(Request{kPingId, Operation::kPing, 0, {}});
}

void ClientConnection::fail_if_silent(Clock::time_point now) {
  if (failed_ || now - last_heard_ <= options_.silence_limit) return;
  silent_ = true;
  fail("its server was silent for more than " + std::to_string(options_.silence_limit.count()) + " ms");
}

void ClientConnection::fail(const std::string& why) {
  if (failed_) return;
  failed_ = true;
  failure_ = why;
  for (const auto& [id, call] : calls_) call->answered.notify_one();
}

void ClientConnection::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void ClientConnection::throw_failure() const {
  const std::string text =
      "the connection to the store at " + place_ + " is lost: " + failure_ +
      "; look at the output of the process that hosts it (rank 0 or the launcher), and restart the job";
  if (silent_) throw StoreSilent(text);
  throw CommError(text);
}

}  // namespace tessera::store
