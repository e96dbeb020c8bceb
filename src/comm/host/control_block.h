#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <linux/futex.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// A word to sleep on, in memory that several processes may share. The non-private futex operations are used on
/// purpose: the private ones do not reach other processes.
using FutexWord = std::atomic<std::uint32_t>;
static_assert(FutexWord::is_always_lock_free && sizeof(FutexWord) == 4);

/// Blocks: while `word` holds `seen`, at most `timeout`. May return early; the caller checks again.
inline void futex_wait(FutexWord& word, std::uint32_t seen, std::chrono::nanoseconds timeout) {
  timespec span{};
  span.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  span.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &span, nullptr, 0);
}

inline void futex_wake_all(FutexWord& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// What a rank publishes to the others at the start of a collective.
struct Post {
  std::uint32_t operation;
  std::int32_t dtype;
  std::int32_t reduce_op;
  std::int32_t root;
  std::int64_t count;    ///< elements, where all ranks must agree on them, else 0
  std::int64_t longest;  ///< elements of the longest block that this rank offers
  std::int32_t num_blocks;
  std::uint64_t address;  ///< of the offered memory, when `direct`
  std::uint32_t direct;   ///< whether peers read that memory in place; otherwise it is staged
};

/// A piece of a message between two ranks.
struct Piece {
  std::uint64_t address;
  std::uint64_t num_bytes;
  std::uint64_t message_bytes;  ///< of the whole message
};

/// Pieces from one rank to another, in order. Two places, so that one is filled while the other is emptied.
struct alignas(64) PairQueue {
  static constexpr std::uint32_t kDepth = 2;
  std::atomic<std::uint32_t> posted;
  std::atomic<std::uint32_t> taken;
  std::array<Piece, kDepth> pieces;
};

/// The memory that the ranks of one host group share, laid out for `size` ranks. All zero is its initial state.
///
/// Note [Two of everything]
/// A rank may begin operation k+1 while a slower one still reads what was posted for operation k; but it passes no
/// barrier of k+1 before all have finished k. So posts, offsets and staging exist twice, used in turn.
class ControlBlock {
 public:
  static constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

  static std::size_t num_bytes(int size);

  ControlBlock(std::byte* memory, int size) : memory_(memory), size_(static_cast<std::size_t>(size)) {}

  FutexWord& arrived() const { return *at<FutexWord>(0); }
  /// 1 + the first rank that gave up waiting for the others; 0 while none has.
  FutexWord& gave_up() const { return *at<FutexWord>(32); }
  /// How many ranks have not released the group.
  std::atomic<std::int32_t>& users() const { return *at<std::atomic<std::int32_t>>(40); }
  FutexWord& generation() const { return *at<FutexWord>(64); }
  FutexWord& doorbell(int rank) const { return *at<FutexWord>(128 + 64 * index(rank)); }
  Post& post(unsigned parity, int rank) const;
  /// Where the blocks of `rank`'s input begin, in elements.
  std::int64_t* offsets(unsigned parity, int rank) const { return row(0, parity, rank); }
  /// How long block `block` of `rank`'s input is, and how much `rank` will read of each other rank's, in elements.
  std::int64_t* offered(unsigned parity, int rank) const { return row(2, parity, rank); }
  std::int64_t* expected(unsigned parity, int rank) const { return row(4, parity, rank); }
  PairQueue& pair(int channel, int from, int to) const;
  std::byte* staging(unsigned parity, int rank) const;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  /// A number for each rank, in table `table + parity`.
  std::int64_t* row(unsigned table, unsigned parity, int rank) const;
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  std::byte* memory_;
  std::size_t size_;
};

/// Checks for a lost member of the group. Returns a sentence about it for the error message, empty while all live.
using LossCheck = std::function<std::string()>;

/// How long to spin before sleeping, decided once for a group.
///
/// Note [Spinning]
/// A word that a running peer is about to write arrives within a microsecond; sleeping and being woken costs ten. But
/// a peer that has no core cannot run while we spin, and the kernel tends to wake a rank on the core of the rank that
/// woke it. So we poll for a bounded time, yielding the core after every few polls, and then sleep. Where ranks
/// outnumber cores, we yield the core a few times and then sleep.
class Waiter {
 public:
  Waiter(int num_local_ranks, LossCheck loss);

  /// A sentence about a lost member, empty while all live.
  std::string find_loss() const { return loss_ ? loss_() : std::string(); }

  /// Blocks: until `ready()`, sleeping on `word`. The rank that makes `ready` true changes `word` and then wakes it.
  /// Throws CommError after the deadline, or when a member is lost; `what` names the operation and the missing ranks.
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
