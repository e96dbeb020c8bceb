#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/synchroniser.h>

#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data_parallel/flat_parameters.h"

namespace tessera::data_parallel {

struct RoundRules {
  std::optional<std::uint64_t> max_staleness;  ///< none: no bound
  std::size_t max_queued = 0;                  ///< used only without a bound; a bound limits the queue itself
};

/// Note [Rounds]
/// Updates are numbered 0, 1, 2, ... and made in rounds, one at a time, by a thread on each rank. Update u is the sum
/// over the ranks of what they gave to round u, divided by the number of ranks. A rank's version is the number of
/// updates that it has applied, in order. A gradient computed at version v and given to round u has staleness u - v.
///
/// With the bound b a rank at version v lets round u pass without a gradient of its own only if u + 1 <= v + b: its
/// next gradient can then still go to round u + 1. Else its thread waits for the gradient, and all ranks with it. And a
/// rank starts to compute only when the first round that its gradient can go to is at most b beyond its version. A rank
/// gives one gradient to a round, so with b = 0 every round holds exactly one gradient of each rank, computed at
/// version u: synchronous training. No rank waits for ever: the oldest unfinished round waits for a rank that is
/// computing, or whose thread is about to answer.
/// Without a bound a rank never waits for a round; gradients that it computes during a round are summed for the next.
///
/// A round begins with a tally of a few numbers. When no rank has a gradient, nothing else is sent and the round's
/// number is used again. A rank without a gradient answers the tally only after a short wait, so that an idle job does
/// not spin.
///
/// On devices rounds have the streams that were the program's when the thread began. A program with several streams
/// cannot see when a round uses what it has given, or makes what it takes: so each side comes behind the other's work
/// when a buffer changes sides. A round ends with the host's wait for the tally of the next one, so whoever joins the
/// thread may free all buffers.
class UpdateRounds {
 public:
  /// Starts the thread. `layout` must outlive it.
  UpdateRounds(Communicator comm, const FlatParameters& layout, RoundRules rules);
  /// Notifies the other ranks that this rank has left, unless all have finished. Blocks: at most for the communicator's
  /// timeout.
  ~UpdateRounds();
  UpdateRounds(const UpdateRounds&) = delete;
  UpdateRounds& operator=(const UpdateRounds&) = delete;

  // ---- For the thread that trains. contribute() and next_update() rethrow an error of the rounds --------------------

  /// Uninitialised.
  FlatBuffers take_buffers();
  /// Adds a gradient computed at the present version. Blocks: while the former one is pending, if there is a bound.
  void contribute(FlatBuffers gradient);
  /// The next update to apply; none when this rank may compute its next gradient or, after finish(), when all ranks are
  /// done. Blocks: until one of the two is the case.
  std::optional<FlatBuffers> next_update();
  /// The update of next_update() is applied: the version rises.
  void applied(FlatBuffers update);
  /// This rank contributes no more gradients.
  void finish();

  std::uint64_t version() const;
  StalenessHistogram staleness() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Contribution {
    FlatBuffers sum;
    std::vector<std::uint64_t> versions;  // of each gradient in it
  };
  struct Tally {
    bool has_gradients;
    bool all_finished;
    std::optional<int> left;  // a rank that has left
  };

  void run();
  void run_rounds();
  std::optional<Contribution> take_offer();
  Tally exchange_tally(bool has_gradient);
  void reduce_and_queue(std::optional<Contribution> mine);

  bool may_pass() const;
  bool may_compute() const;
  std::chrono::nanoseconds grace() const;
  void note_computing_time();
  void rethrow_failure() const;
  /// The calling thread's streams wait for the rounds', and those for them.
  void come_behind_rounds() const;
  void let_rounds_come_behind() const;

  const Communicator comm_;
  const FlatParameters& layout_;
  const RoundRules rules_;
  const std::vector<c10::Stream> streams_;  // of the rounds: one for each device
  at::Tensor tally_;                        // used by the thread alone

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<Contribution> pending_;
  std::deque<FlatBuffers> queue_;  // updates, not yet applied
  std::vector<FlatBuffers> spare_;
  std::uint64_t num_updates_ = 0;  // made: the number of the next round
  bool in_flight_ = false;         // this rank has answered the tally of the next round
  std::uint64_t version_ = 0;
  bool finishing_ = false;
  bool leaving_ = false;
  bool done_ = false;
  std::exception_ptr failure_;
  StalenessHistogram staleness_;
  std::optional<Clock::time_point> computing_since_;  // unset for the first gradient, whose time includes set-up
  std::chrono::nanoseconds computing_time_{0};        // a moving average

  std::thread thread_;
};

}  // namespace tessera::data_parallel
