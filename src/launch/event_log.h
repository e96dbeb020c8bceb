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

/// Where the log is, and which process writes to it here.
struct EventLogPlace {
  std::string address;
  int port = 0;
  store::Secret secret;
  std::chrono::milliseconds timeout{};  ///< for the store to be reached
  std::string writer;                   ///< a word that no other writer has
  std::string tag;                      ///< what the store publishes when this process is gone
  bool is_host = false;                 ///< of the store; it appends "lost" for each process that is gone
};

/// The log that the launchers of a job share: see Note [One log for all launchers]. Its own threads communicate with
/// the store, so that no function but leave() waits for the network.
class EventLog {
 public:
  explicit EventLog(EventLogPlace place);
  /// Without leave() before, the other launchers see what they would see if this process had been killed.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void append(std::string event);

  /// Writes all appended events and leaves in order. Does nothing if the store was never reached. Blocks: until the
  /// events are in the store, at most the few seconds after which a silent store counts as lost.
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
  bool in_order_ = false;  ///< leaves after all events are written
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

}  // namespace tessera::launch
