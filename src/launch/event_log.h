#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/client.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <vector>

namespace tessera::launch {

/// Where the log is, and who writes it.
struct EventLogPlace {
  std::string address;
  int port = 0;
  store::Secret secret;
  std::chrono::milliseconds timeout{};  ///< for the store to be reached
  std::string writer;                   ///< a word that no other writer has
  std::string tag;                      ///< what is told when this process is gone
  bool is_host = false;                 ///< of the store; it tells all of those that are gone
};

/// The log that the launchers of a job share: see Note [One log for all launchers]. Threads of its own talk to the
/// store, so that no function but leave() waits for the network.
class EventLog {
 public:
  explicit EventLog(EventLogPlace place);
  /// Without leave() before it: as if this process had been killed.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void append(std::string event);

  /// Ends with everything told, unless the store was never reached: then nobody knows of this process. Blocks: until
  /// what was appended is in the store, at most the few seconds after which a store is taken for dead.
  void leave();

  /// Readable when there is news.
  int descriptor() const { return news_.get(); }

  struct Disconnection {
    std::string why;
    int exit_code = 0;
  };
  struct News {
    std::vector<std::string> events;  ///< in the order of the log
    std::optional<Disconnection> disconnection;
  };
  News take();

 private:
  void run();
  void follow(store::StoreClient& client);
  void write(store::StoreClient& client);
  void watch_for_lost(store::StoreClient& client);
  std::optional<store::StoreClient> connect();
  void publish(std::string event);
  void fail(const std::string& why, int exit_code);
  void stop(bool in_order);

  const EventLogPlace place_;
  Descriptor news_;
  std::mutex mutex_;  // for all below
  std::condition_variable outgoing_changed_;
  std::queue<std::string> outgoing_;
  News incoming_;
  bool in_order_ = false;  ///< leaves, with everything told
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

}  // namespace tessera::launch
