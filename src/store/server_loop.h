#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/server.h>

#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "store/awake_clock.h"
#include "store/channel.h"
#include "store/frame_stream.h"
#include "store/request_handler.h"
#include "store/stranger_budget.h"

namespace tessera::store {

/// The server's connections, on one thread. Nothing that comes from a socket makes it throw.
class ServerLoop {
 public:
  /// Requires: `listener` listens and is non-blocking; `time` may be asked by the thread of run().
  ServerLoop(Descriptor listener, const Secret& secret, const ServerOptions& options,
             TimeSource time = std::chrono::steady_clock::now);

  /// Blocks: until stop().
  void run();
  /// Thread-safety: any thread.
  void stop();
  std::size_t num_clients() const { return num_clients_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Connection {
    Connection(Descriptor connected, const ChannelContext& context, Clock::time_point now)
        : socket(std::move(connected)), stream(context), accepted(now), last_heard(now) {}

    Descriptor socket;
    FrameStream stream;
    Clock::time_point accepted;  ///< by the AwakeClock, as the next
    Clock::time_point last_heard;
    std::uint32_t events = EPOLLIN;
    std::chrono::nanoseconds spent{0};  ///< on it, while it had not proved the secret
    bool authenticated = false;
    bool closing = false;
  };

  void handle_safely(const epoll_event& event);
  void handle_event(const epoll_event& event);
  void handle(ConnectionId id, Connection& connection, std::uint32_t events);
  void handle_stranger(ConnectionId id, Connection& connection, std::uint32_t events);
  void charge(std::chrono::nanoseconds spent);
  void accept_some();
  bool full() const { return unauthenticated_.size() >= options_.max_unauthenticated; }
  bool make_place();
  void pause_listening(Clock::time_point until);
  void resume_listening();
  void admit(Descriptor connected);
  void read_some(ConnectionId id, Connection& connection);
  void take_frames(ConnectionId id, Connection& connection);
  void answer(ConnectionId id, const Response& response);
  void write_some(ConnectionId id, Connection& connection);
  void update_events(ConnectionId id, Connection& connection);
  void close_later(ConnectionId id, Connection& connection);
  void settle();
  void drop(ConnectionId id);
  void drop_late(Clock::time_point now);
  int sleep_milliseconds() const;
  void watch(int operation, int descriptor, ConnectionId id, std::uint32_t events) const;

  ServerOptions options_;
  TimeSource time_;
  ChannelContext context_;
  Descriptor listener_;
  Descriptor epoll_;
  Descriptor wake_;
  RequestHandler handler_;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::set<ConnectionId> unauthenticated_;  // ids grow, so the first is the oldest
  std::vector<ConnectionId> answered_;      // have something to send
  std::vector<ConnectionId> closing_;
  ConnectionId next_id_;
  Clock::time_point next_look_;
  AwakeClock awake_;
  StrangerBudget budget_;
  Clock::time_point pause_end_;
  bool listening_ = true;
  bool waits_for_place_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<std::size_t> num_clients_ = 0;
};

}  // namespace tessera::store
