#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/client.h>
#include <tessera/store/secret.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "store/channel.h"
#include "store/clocks.h"
#include "store/frame_stream.h"
#include "store/protocol.h"

namespace tessera::store {

/// A connection to a store, over which both sides have proved the secret.
struct Connected {
  Descriptor socket;
  std::unique_ptr<ChannelContext> context;
  std::unique_ptr<FrameStream> stream;
};

/// Tries until it succeeds. Blocks: at most `timeout`, then throws StoreNotReached with the last reason.
/// Without `retry_refusals`, throws CommError at once when the store refuses the secret.
Connected connect_to_store(const std::string& address, int port, const SecretSource& secret, bool retry_refusals,
                           std::chrono::milliseconds timeout);

/// Note [Who does the client's work]
/// A caller encrypts and sends its request itself, then sleeps. A thread of the connection receives, wakes the caller
/// whose answer has come, sends what did not fit into the socket, pings, and notices a silent server. So a call costs
/// one switch of threads. A waiting caller does not hold up others: one mutex protects all shared state, and no thread
/// holds it while it waits for the network.
class ClientConnection {
 public:
  ClientConnection(Connected connected, std::string place, const ClientOptions& options);
  ~ClientConnection();
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  /// Blocks: until the answer is there. After the deadline it cancels the request and returns the answer to that,
  /// unless the regular answer comes first. Throws CommError when the connection is lost.
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
  bool silent_ = false;  // it failed because the server was silent
  bool failed_ = false;
  bool blocked_ = false;  // the socket took less than there was
  AwakeClock awake_;
  Clock::time_point last_heard_;  // by `awake_`
  Clock::time_point last_sent_;

  std::thread thread_;
};

}  // namespace tessera::store
