// Training on uneven inputs.
#include <tessera/core/error.h>
#include <tessera/data_parallel/sync_batch_norm.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <tessera/shard/state_broadcast.h>
#include "data_parallel/ddp_state.h"

namespace tessera {

Join::Join(std::shared_ptr<data_parallel::DdpState> state, bool divide_by_initial_size)
    : state_(std::move(state)), number_(state_->start_join(divide_by_initial_size)) {}

Join::~Join() { state_->end_join(number_); }

void Join::finish() { state_->finish_join(); }

namespace data_parallel {

int DdpState::start_join(bool divide_by_initial_size) {
  require_between_steps("join()");
  if (settings_.reproducible) {
    throw ConfigError("reproducible mode needs the same number of micro-batches on every rank: it has no join()");
  }
  if (settings_.static_graph && num_passes_ == 0) {
    throw ConfigError("with static_graph(true) every rank must learn the graph: run one step before join()");
  }
  for (const auto& entry : model_->named_modules()) {
    if (!entry.value()->as<SyncBatchNormImpl>()) continue;
    throw ConfigError("the layer \"" + entry.key() +
                      "\" is a SyncBatchNorm, whose calls a rank without batches cannot answer: join() is refused");
  }
  if (joining_) throw ConfigError("this model is in a join() already; finish() it first");
  // Here, where all ranks are: one without batches has no forward.
  follow_frozen_parameters();
  renew_hooks();
  if (settings_.broadcast_buffers) take_buffers(0);
  joining_ = true;
  divide_by_initial_size_ = divide_by_initial_size;
  return ++join_number_;
}

void DdpState::end_join(int number) noexcept {
  if (!joining_ || number != join_number_) return;
  sync_->set_divisor(comm_.size());
  first_training_rank_ = 0;
  joining_ = false;
}

int DdpState::count_training_ranks(bool this_one) {
  const at::Tensor first = at::full({1}, this_one ? comm_.rank() : comm_.size(), at::kInt);
  const at::Tensor number = at::full({1}, this_one ? 1 : 0, at::kInt);
  comm_.all_reduce(first, ReduceOp::kMin);
  comm_.all_reduce(number, ReduceOp::kSum);
  // The last answer with a rank in it names whose weights are the most trained.
  if (number.item<int>() > 0) first_training_rank_ = first.item<int>();
  return number.item<int>();
}

void DdpState::finish_join() {
  if (!joining_) throw ConfigError("finish() was called twice, or after an error");
  require_between_steps("finish()");
  // In the order of a backward pass.
  while (const int num_training = count_training_ranks(false)) {
    sync_->set_divisor(divide_by_initial_size_ ? comm_.size() : num_training);
    sync_->shadow_backward();
    if (settings_.broadcast_buffers) take_buffers(first_training_rank_);
  }
  const NamedTensors state = state_of(*model_);
  broadcast_all(comm_, state.tensors, first_training_rank_);
  end_join(join_number_);
}

}  // namespace data_parallel
}  // namespace tessera
