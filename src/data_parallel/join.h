#pragma once

#include <tessera/comm/communicator.h>

namespace tessera::data_parallel {

/// A join() of a distributed model on one rank: training while the ranks have different numbers of batches.
class JoinState {
 public:
  bool is_active() const { return is_active_; }
  /// Of the last join() that was started.
  int number() const { return number_; }
  /// Returns its number.
  int start(bool divide_by_initial_size);
  /// False if that join() has ended already.
  bool end(int number) noexcept;

  /// How many ranks have a batch now. Collective: over `comm`.
  int count_training_ranks(const Communicator& comm, bool this_one);
  /// By what the sum of gradients is divided.
  int divisor(const Communicator& comm, int num_training) const;
  /// The first of the ranks that had a batch when they were counted last: its weights are the most trained.
  int first_training_rank() const { return first_training_rank_; }

 private:
  bool is_active_ = false;
  int number_ = 0;
  bool divide_by_initial_size_ = true;
  int first_training_rank_ = 0;
};

}  // namespace tessera::data_parallel
