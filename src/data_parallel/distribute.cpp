#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/distributed_data_parallel.h>

#include <torch/nn/module.h>

#include <utility>

#include "data_parallel/ddp_state.h"

namespace tessera {

NoSync::NoSync(std::shared_ptr<data_parallel::DdpState> state) : state_(std::move(state)) { state_->enter_no_sync(); }

NoSync::~NoSync() { state_->leave_no_sync(); }

DistributedModel::DistributedModel(std::shared_ptr<data_parallel::DdpState> state) : state_(std::move(state)) {}

const std::vector<at::Tensor>& DistributedModel::parameters() const { return state_->parameters().tensors; }

const std::vector<std::string>& DistributedModel::parameter_names() const { return state_->parameters().names; }

const Communicator& DistributedModel::comm() const { return state_->comm(); }

const torch::nn::Module& DistributedModel::module() const { return state_->model(); }

GradientHook& DistributedModel::hook() const { return state_->hook(); }

NoSync DistributedModel::no_sync() const { return NoSync(state_); }

Join DistributedModel::join(bool divide_by_initial_size) const { return Join(state_, divide_by_initial_size); }

void DistributedModel::sync_buffers() const {
  state_->require_between_steps("sync_buffers");
  state_->sync_buffers(0);
}

void DistributedModel::set_bucket_bytes(std::int64_t bucket_bytes) const {
  state_->require_between_steps("set_bucket_bytes");
  state_->sync().set_bucket_bytes(bucket_bytes);
}

std::int64_t DistributedModel::bucket_bytes() const { return state_->sync().bucket_bytes(); }

DistributedModel::Buckets DistributedModel::buckets() const {
  state_->require_no_backward("buckets");
  return state_->sync().buckets();
}

void DistributedModel::set_buckets(const Buckets& buckets) const {
  state_->require_between_steps("set_buckets");
  state_->sync().set_buckets(buckets);
}

void DistributedModel::set_micro_batch(std::int64_t index) const { state_->sync().set_micro_batch(index); }

DdpStatistics DistributedModel::statistics() const { return state_->statistics(); }

DistributedModel distribute(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks, const DdpOptions& options) {
  return DistributedModel(
      data_parallel::DdpState::make(std::move(model), ranks.comm(), options, data_parallel::ForwardNotice::kOperator));
}

DistributedModel distribute_wrapped(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks,
                                    const DdpOptions& options) {
  return DistributedModel(
      data_parallel::DdpState::make(std::move(model), ranks.comm(), options, data_parallel::ForwardNotice::kWrapper));
}

void begin_forward(const DistributedModel& model) {
  if (at::GradMode::is_enabled()) model.state()->begin_forward();
}

}  // namespace tessera
