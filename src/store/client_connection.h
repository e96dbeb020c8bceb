#pragma once

#include <tessera/store/client.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "store/awake_clock.h"
#include "store/connector.h"
#include "store/protocol.h"

namespace tessera::store {

/// Note [Who does the client's work]
/// A caller encrypts its request and sends it itself, then sleeps; a thread of the connection receives, wakes whom the
/// answer is for, sends what did not fit into the socket, pings, and notices a silent server. So a call costs one
/// change of threads, and a caller that waits holds nobody up: everything shared is behind one mutex that is never held
/// while waiting for the network.
class ClientConnection {
 public:
  ClientConnection(Connected connected, std::string place, const ClientOptions& options);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  /// Blocks: until the answer is there. After the deadline the request is cancelled, and the answer says so unless it
  /// was quicker. Throws CommError when the connection is lost.
  Response call(Operation operation, std::int64_t number, std::vector<std::string> fields,
                std::chrono::steady_clock::time_point deadline);

  void close();
  const std::string& place() const { return place_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    std::condition_variable answered;
    std::optional<Response> response;
  };

  void run();
  void receive_some();
  void take_frames();
  void send_request(const Request& request);
  void send_output();
  void ping_if_idle();
  void fail_if_silent(Clock::time_point now);
  void fail(const std::string& why);
  void wake() const;
  [[noreturn]] void throw_failure() const;

  const std::string place_;
  const ClientOptions options_;
  Connected connected_;
  Descriptor wake_;

  std::mutex mutex_;  // for all below, and the stream
  std::unordered_map<std::uint64_t, Call*> calls_;
  std::uint64_t next_id_ = 1;
  std::string failure_;
  bool silent_ = false;  // that is why it failed
  bool failed_ = false;
  bool blocked_ = false;  // the socket took less than there was
  AwakeClock awake_;
  Clock::time_point last_heard_;  // by that clock
  Clock::time_point last_sent_;

  std::thread thread_;
};

}  // namespace tessera::store
