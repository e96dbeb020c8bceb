#include "store/server_loop.h"

#include <tessera/core/error.h>
#include <tessera/store/server.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "store/clocks.h"
#include "store/sockets.h"

namespace tessera::store {
namespace {

constexpr ConnectionId kListenerId = 0;
constexpr ConnectionId kWakeId = 1;
constexpr ConnectionId kFirstId = 2;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
/// Limits, so that one busy connection, or a flood of new ones, does not keep the others waiting.
constexpr int kReadsInARow = 4;
constexpr int kAcceptsInARow = 32;
/// How long a connection that has not proved the secret keeps its place while others wait for one. Without it, many
/// honest clients at once would displace each other before any of them is done.
constexpr std::chrono::milliseconds kGrace{50};
/// No further requests are read from a client that has this many unsent answers.
constexpr std::size_t kEnoughOutputBytes = std::size_t{1} << 20;

/// The share of strangers in this much time can be saved up for many at once: at a hundredth, for a thousand of them.
constexpr std::chrono::seconds kSavedUp{5};

std::chrono::nanoseconds saved_up(const ServerOptions& options) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(options.strangers_share * kSavedUp);
}

/// The CPU time of this thread. Not the wall clock, because other threads may have had the core meanwhile.
std::chrono::nanoseconds thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

constexpr std::chrono::hours kForGood{24 * 365};

void require_valid(const ServerOptions& options) {
  if (options.handshake_timeout.count() > 0 && options.silence_limit.count() > 0 && options.max_unauthenticated > 0 &&
      options.max_output_bytes > 0 && options.strangers_share > 0 && options.idle_limit.count() > 0) {
    return;
  }
  throw ConfigError(
      "the store's handshake_timeout, silence_limit, idle_limit, max_unauthenticated, max_output_bytes and "
      "strangers_share must be larger than 0; at least one is not");
}

}  // namespace

ServerLoop::ServerLoop(Descriptor listener, const Secret& secret, const ServerOptions& options, TimeSource time)
    : options_(options),
      time_(std::move(time)),
      context_(ChannelRole::kServer, secret),
      listener_(std::move(listener)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      handler_([this](ConnectionId id, const Response& response) { answer(id, response); }),
      next_id_(kFirstId),
      next_look_(time_()),
      awake_(time_),
      budget_(options.strangers_share, saved_up(options), time_()) {
  require_valid(options);
  if (!epoll_ || !wake_) {
    throw CommError(std::string("the store gets no file descriptors: ") + std::strerror(errno) +
                    "; raise the limit (ulimit -n)");
  }
  watch(EPOLL_CTL_ADD, listener_.get(), kListenerId, EPOLLIN);
  watch(EPOLL_CTL_ADD, wake_.get(), kWakeId, EPOLLIN);
}

void ServerLoop::run() {
  std::array<epoll_event, 256> events{};
  while (!stopping_) {
    // Note [Silence is judged by what was there to be read]
    // After a pause of this process, every client seems to have been silent. So the loop reads the time first, then all
    // bytes that have arrived. Only a client that had sent nothing up to that time is late.
    const auto now = awake_.now();
    const int sleep = sleep_milliseconds();
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), sleep);
    awake_.woke(sleep < 0 ? kForGood : std::chrono::milliseconds(sleep));
    for (int i = 0; i < count; ++i) handle_safely(events[static_cast<std::size_t>(i)]);
    const bool all_read = count >= 0 && count < static_cast<int>(events.size());
    if (all_read && time_() >= next_look_) drop_late(now);
  }
}

void ServerLoop::stop() {
  stopping_ = true;
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the loop wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void ServerLoop::handle_safely(const epoll_event& event) {
  try {
    handle_event(event);
  } catch (const std::exception&) {
    // Most likely memory ran out for a request of this peer. Only this peer is dropped; the others keep their store.
    drop(event.data.u64);
  }
}

void ServerLoop::handle_event(const epoll_event& event) {
  const std::uint64_t id = event.data.u64;  // a copy: the kernel's structure is packed, and not aligned
  if (id == kWakeId) return;
  if (id == kListenerId) return accept_some();
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (connection.authenticated) {
    handle(found->first, connection, event.events);
  } else {
    handle_stranger(found->first, connection, event.events);
  }
  settle();
}

void ServerLoop::handle(ConnectionId id, Connection& connection, std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    // The peer is receiving, if slowly, which is a sign of life too.
    connection.last_heard = awake_.now();
    write_some(id, connection);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some(id, connection);
}

void ServerLoop::handle_stranger(ConnectionId id, Connection& connection, std::uint32_t events) {
  const auto begin = thread_time();
  handle(id, connection, events);
  const auto spent = thread_time() - begin;
  if (!connection.authenticated) {
    connection.spent += spent;
    return charge(spent);
  }
  budget_.give_back(connection.spent);
  if (!budget_.overdrawn()) resume_listening();
}

/// See Note [What strangers may cost].
void ServerLoop::charge(std::chrono::nanoseconds spent) {
  const auto now = time_();
  budget_.spend(spent, now);
  if (budget_.overdrawn()) pause_listening(budget_.solvent_at(now));
}

void ServerLoop::accept_some() {
  const auto begin = thread_time();
  const ConnectionId first = next_id_;
  for (int i = 0; i < kAcceptsInARow; ++i) {
    if (!make_place()) break;
    Descriptor connected(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connected) {
      admit(std::move(connected));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      pause_listening(next_look_);
    }
    if (errno != EINTR && errno != ECONNABORTED) break;
  }
  settle();
  if (next_id_ == first) return;
  const auto each = (thread_time() - begin) / static_cast<std::int64_t>(next_id_ - first);
  for (ConnectionId id = first; id < next_id_; ++id) {
    const auto found = connections_.find(id);
    if (found != connections_.end()) found->second->spent += each;
    charge(each);
  }
}

bool ServerLoop::make_place() {
  if (!full()) return true;
  const ConnectionId oldest = *unauthenticated_.begin();
  const auto leaves = connections_.at(oldest)->accepted + kGrace;
  if (awake_.now() >= leaves) {
    drop(oldest);
    return true;
  }
  pause_listening(awake_.real(leaves));
  waits_for_place_ = true;
  return false;
}

/// Stops polling the listener, which would otherwise be reported as readable again and again.
void ServerLoop::pause_listening(Clock::time_point until) {
  if (listening_) watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, 0);
  listening_ = false;
  pause_end_ = until;
  next_look_ = std::min(next_look_, until);
}

void ServerLoop::resume_listening() {
  if (listening_) return;
  watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, EPOLLIN);
  listening_ = true;
  waits_for_place_ = false;
}

void ServerLoop::admit(Descriptor connected) {
  const int descriptor = connected.get();
  send_without_delay(descriptor);
  const ConnectionId id = next_id_++;
  connections_.emplace(id, std::make_unique<Connection>(std::move(connected), context_, awake_.now()));
  unauthenticated_.insert(id);
  watch(EPOLL_CTL_ADD, descriptor, id, EPOLLIN);
}

void ServerLoop::read_some(ConnectionId id, Connection& connection) {
  std::array<char, kReadBytes> block;  // NOLINT(*-member-init): filled by the next call
  for (int i = 0; i < kReadsInARow && !connection.closing; ++i) {
    const ssize_t count = recv(connection.socket.get(), block.data(), block.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) return close_later(id, connection);
    connection.last_heard = awake_.now();
    connection.stream.receive({block.data(), static_cast<std::size_t>(count)});
    take_frames(id, connection);
    // Also sends the handshake's messages and, at the end, the reason of a refusal.
    write_some(id, connection);
    if (connection.stream.ended()) return close_later(id, connection);
    if (count < static_cast<ssize_t>(block.size())) return;
  }
}

void ServerLoop::take_frames(ConnectionId id, Connection& connection) {
  if (!connection.stream.authenticated()) return;
  if (!connection.authenticated) {
    connection.authenticated = true;
    unauthenticated_.erase(id);
    ++num_clients_;
  }
  while (const auto frame = connection.stream.next_frame()) {
    auto request = decode_request(*frame);
    if (!request) return close_later(id, connection);
    handler_.handle(id, std::move(*request));
  }
}

void ServerLoop::answer(ConnectionId id, const Response& response) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  if (connection.closing) return;
  connection.stream.queue(encode(response));
  if (connection.stream.queued_bytes() > options_.max_output_bytes) return close_later(id, connection);
  answered_.push_back(id);
}

void ServerLoop::write_some(ConnectionId id, Connection& connection) {
  for (auto bytes = connection.stream.output(); !bytes.empty(); bytes = connection.stream.output()) {
    const ssize_t count = send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return close_later(id, connection);
    connection.stream.sent(static_cast<std::size_t>(count));
  }
  update_events(id, connection);
}

void ServerLoop::update_events(ConnectionId id, Connection& connection) {
  const bool more_to_send = !connection.stream.output().empty();
  const bool enough = connection.stream.queued_bytes() > kEnoughOutputBytes;
  const std::uint32_t events = (enough ? 0U : EPOLLIN) | (more_to_send ? EPOLLOUT : 0U);
  if (events == connection.events) return;
  connection.events = events;
  watch(EPOLL_CTL_MOD, connection.socket.get(), id, events);
}

void ServerLoop::close_later(ConnectionId id, Connection& connection) {
  if (connection.closing) return;
  connection.closing = true;
  closing_.push_back(id);
}

void ServerLoop::settle() {
  // The end of one connection sets the keys of its leases. That may answer requests of other connections, and sending
  // these answers may end those connections.
  while (!answered_.empty() || !closing_.empty()) {
    for (const ConnectionId id : std::exchange(answered_, {})) {
      const auto found = connections_.find(id);
      if (found != connections_.end() && !found->second->closing) write_some(id, *found->second);
    }
    for (const ConnectionId id : std::exchange(closing_, {})) drop(id);
  }
  if (waits_for_place_ && !full() && !budget_.overdrawn()) resume_listening();
}

void ServerLoop::drop(ConnectionId id) {
  const auto found = connections_.extract(id);
  if (found.empty()) return;
  unauthenticated_.erase(id);
  if (!found.mapped()->authenticated) return;
  --num_clients_;
  handler_.disconnect(id);
}

void ServerLoop::drop_late(Clock::time_point now) {
  for (auto& [id, connection] : connections_) {
    const auto limit = handler_.has_lease(id) ? options_.silence_limit : options_.idle_limit;
    const bool late = connection->authenticated ? now - connection->last_heard > limit
                                                : now - connection->accepted > options_.handshake_timeout;
    if (late) close_later(id, *connection);
  }
  if (time_() >= pause_end_) resume_listening();
  const auto period = std::min(options_.silence_limit, options_.handshake_timeout) / 8;
  next_look_ = time_() + std::clamp(period, std::chrono::milliseconds(5), std::chrono::milliseconds(250));
  if (!listening_) next_look_ = std::min(next_look_, pause_end_);
  settle();
}

int ServerLoop::sleep_milliseconds() const {
  return connections_.empty() && listening_ ? -1 : poll_milliseconds(next_look_, time_());
}

void ServerLoop::watch(int operation, int descriptor, ConnectionId id, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), operation, descriptor, &event);
}

class StoreServer::Thread {
 public:
  Thread(Descriptor listener, const Secret& secret, const ServerOptions& options)
      : port_(port_of(listener)),
        loop_(std::move(listener), secret, options),
        thread_(start_without_signals([this] { loop_.run(); })) {}
  ~Thread() {
    loop_.stop();
    thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  int port() const { return port_; }
  const ServerLoop& loop() const { return loop_; }

 private:
  int port_;
  ServerLoop loop_;
  std::thread thread_;
};

StoreServer::StoreServer(const std::string& address, int port, const Secret& secret, const ServerOptions& options)
    : thread_(std::make_unique<Thread>(listen_on(address, port), secret, options)) {}

StoreServer::StoreServer(int listening_descriptor, const Secret& secret, const ServerOptions& options) {
  Descriptor listener(listening_descriptor);
  require_listening(listener);
  thread_ = std::make_unique<Thread>(std::move(listener), secret, options);
}

StoreServer::~StoreServer() = default;

int StoreServer::port() const { return thread_->port(); }

std::size_t StoreServer::num_clients() const { return thread_->loop().num_clients(); }

}  // namespace tessera::store
