#pragma once

#include <tessera/store/client.h>
#include <tessera/store/secret.h>
#include <tessera/store/server.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "comm/watch/alarm.h"

namespace tessera::comm {

/// Note [Who watches whom]
/// Each rank watches the next one, in a ring. That takes two connections a rank, whatever the size of the job, and
/// exactly one other rank notices when a rank dies, stops or cannot be reached. The connections are those of a store,
/// whose client and server already exchange pings. A rank that leaves in order sets a key in the job's store; its
/// watcher then watches the rank after it.
class Neighbour {
 public:
  struct Settings {
    int rank = 0;
    int size = 1;
    std::string address;  ///< of this rank, as its neighbour reaches it
    std::chrono::milliseconds silence{5000};
    std::string black_box;  ///< see RankAddress
  };
  /// A lost neighbour. Either its connection broke, as when its process ended, or it only fell silent.
  struct Loss {
    int rank = 0;
    bool silent = false;
    std::string reason;
    RankAddress address;
  };
  using OnLost = std::function<void(const Loss& loss)>;

  /// Publishes the address of this rank, and begins to watch. `on_lost` is called on a thread of this object.
  Neighbour(Settings settings, const JobKeys& keys, const store::Secret& secret, OnLost on_lost);
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  void run();
  enum class End {
    kLeft,    ///< it left in order: watch the next one
    kSilent,  ///< it may only be slow: watch it again
    kOver,    ///< this object ends, or the rank is lost: watch no more
  };
  /// Watches a rank until it leaves, is lost or falls silent.
  End follow(int rank);
  std::unique_ptr<store::StoreClient> reach(int rank, const RankAddress& address);
  bool is_stopping();
  bool has_left(int rank);

  Settings settings_;
  const JobKeys& keys_;
  store::Secret secret_;
  OnLost on_lost_;
  store::StoreServer server_;
  std::mutex mutex_;
  std::unique_ptr<store::StoreClient> client_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
