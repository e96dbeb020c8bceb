#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/server.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <sys/epoll.h>
#include <unordered_map>
#include <vector>

#include "store/channel.h"
#include "store/clocks.h"
#include "store/frame_stream.h"
#include "store/request_handler.h"

namespace tessera::store {

/// Note [What strangers may cost]
/// A connection costs some 50 microseconds before it is known that it cannot prove the secret, and the store shares its
/// cores with the job. So the server counts the time that it spends on strangers. When this exceeds a share of all
/// time, it accepts no connection for a while: new ones wait in the system's queue, where they cost nothing. When a
/// client proves the secret, the time spent on it is given back, so that many honest clients never have to wait.
///
/// Pure: reads no clock.
class StrangerBudget {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `share`: of all time. `most`: how much unspent time can be saved up.
  StrangerBudget(double share, Duration most, TimePoint now) : share_(share), most_(most), saved_(most), time_(now) {}

  void spend(Duration spent, TimePoint now) {
    earn(now);
    saved_ -= spent;
  }
  void give_back(Duration spent) { saved_ = std::min(most_, saved_ + spent); }

  bool overdrawn() const { return saved_ < Duration::zero(); }
  /// When there is enough time again for a handful of connections.
  /// Requires: share above 0.
  TimePoint solvent_at(TimePoint now) const {
    constexpr Duration kHandful = std::chrono::milliseconds(1);
    const double missing = static_cast<double>((std::min(kHandful, most_) - saved_).count());
    return now + Duration(static_cast<Duration::rep>(std::max(0.0, missing / share_)));
  }

 private:
  void earn(TimePoint now) {
    const auto earned = static_cast<Duration::rep>(share_ * static_cast<double>(Duration(now - time_).count()));
    saved_ = std::min(most_, saved_ + Duration(earned));
    time_ = now;
  }

  double share_;
  Duration most_;
  Duration saved_;
  TimePoint time_;
};

/// The server's connections, on one thread. No bytes from a socket make it throw.
class ServerLoop {
 public:
  /// Requires: `listener` listens and is non-blocking; `time` may be called from the thread of run().
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
    Clock::time_point accepted;  ///< by the AwakeClock, as is last_heard
    Clock::time_point last_heard;
    std::uint32_t events = EPOLLIN;
    std::chrono::nanoseconds spent{0};  ///< time of this thread before the connection proved the secret
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
