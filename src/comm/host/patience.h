#pragma once

#include <functional>
#include <string>

#include "comm/engine/deadline.h"
#include "comm/host/futex.h"

namespace tessera::comm {

/// Tells of a member of the group that is gone: a sentence for the error message, empty while all live.
using LossCheck = std::function<std::string()>;

/// How long to spin before sleeping, decided once for a group.
///
/// Note [Spinning]
/// A word that a running peer is about to write arrives within a microsecond; sleeping and being woken costs ten. But
/// a peer that has no core cannot run while we spin, and the kernel likes to wake a rank on the core of the one that
/// woke it. So we look for a bounded time, offering the core to others every few looks, and then sleep; where ranks
/// outnumber cores we offer the core a few times and sleep at once.
class Patience {
 public:
  Patience(int num_local_ranks, LossCheck loss);

  /// Blocks: until `ready()`, sleeping on `word`, which whoever makes `ready` true changes before waking it.
  /// Throws CommError after the deadline, or when a member is lost; `what` names the operation and who is missing.
  template <typename Ready, typename What>
  void wait(FutexWord& word, Ready ready, Deadline deadline, What what) const {
    for (int turn = 0; turn < turns_; ++turn) {
      for (int look = 0; look < looks_; ++look) {
        if (ready()) return;
        pause();
      }
      offer_core();
    }
    while (true) {
      const std::uint32_t seen = word.load(std::memory_order_acquire);
      if (ready()) return;
      futex_wait(word, seen, std::min<std::chrono::nanoseconds>(kTick, deadline.remaining()));
      if (ready()) return;
      check(deadline, what);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kTick{100};

  static void pause();
  static void offer_core();
  void check(Deadline deadline, const std::function<std::string()>& what) const;

  int turns_;
  int looks_;  ///< in each turn
  LossCheck loss_;
};

}  // namespace tessera::comm
