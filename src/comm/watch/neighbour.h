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
#include "comm/watch/job_keys.h"

namespace tessera::comm {

/// Note [Who watches whom]
/// Each rank watches the next one, in a ring: two connections a rank, whatever the size of the job, and a rank that
/// dies, stops or cannot be reached is missed by exactly one other. The connections are those of the store, whose two
/// ends already tell each other every second that they live. A rank that left in order has said so in the job's store;
/// then the one after it is watched.
class Neighbour {
 public:
  struct Settings {
    int rank = 0;
    int size = 1;
    std::string address;  ///< of this rank, as its neighbour reaches it
    std::chrono::milliseconds silence{5000};
    std::string black_box;  ///< see RankAddress
  };
  /// A neighbour whose connection broke, which the end of its process explains, or who only fell silent.
  struct Loss {
    int rank = 0;
    bool silent = false;
    std::string reason;
    RankAddress address;
  };
  using OnLost = std::function<void(const Loss& loss)>;

  /// Publishes where this rank is, and begins to watch. `on_lost` is called on a thread of this object.
  Neighbour(Settings settings, const JobKeys& keys, const store::Secret& secret, OnLost on_lost);
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  void run();
  enum class End {
    kLeft,    ///< in order: the next one is to be watched
    kSilent,  ///< it may come back, when it is merely slow
    kOver,    ///< nobody is left to watch
  };
  /// Watches a rank for as long as it gives signs of life.
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
