#include "data_parallel/join.h"

#include <ATen/ATen.h>

#include "data_parallel/ddp_state.h"

namespace tessera {

Join::Join(std::shared_ptr<data_parallel::DdpState> state, bool divide_by_initial_size)
    : state_(std::move(state)), number_(state_->start_join(divide_by_initial_size)) {}

Join::~Join() { state_->end_join(number_); }

void Join::finish() { state_->finish_join(); }

namespace data_parallel {

int JoinState::start(bool divide_by_initial_size) {
  is_active_ = true;
  divide_by_initial_size_ = divide_by_initial_size;
  return ++number_;
}

bool JoinState::end(int number) noexcept {
  if (!is_active_ || number != number_) return false;
  first_training_rank_ = 0;
  is_active_ = false;
  return true;
}

int JoinState::count_training_ranks(const Communicator& comm, bool this_one) {
  const at::Tensor first = at::full({1}, this_one ? comm.rank() : comm.size(), at::kInt);
  const at::Tensor number = at::full({1}, this_one ? 1 : 0, at::kInt);
  comm.all_reduce(first, ReduceOp::kMin);
  comm.all_reduce(number, ReduceOp::kSum);
  // After the last step this is the first rank that took part in it, so its weights are the most trained.
  if (number.item<int>() > 0) first_training_rank_ = first.item<int>();
  return number.item<int>();
}

int JoinState::divisor(const Communicator& comm, int num_training) const {
  return divide_by_initial_size_ ? comm.size() : num_training;
}

}  // namespace data_parallel
}  // namespace tessera
