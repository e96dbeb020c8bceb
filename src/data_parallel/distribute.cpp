#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/distributed_data_parallel.h>
#include <tessera/intercept/pass_tracker.h>

#include <torch/nn/module.h>

#include <utility>

#include "data_parallel/ddp_state.h"

namespace tessera {

DistributedModel::DistributedModel(std::shared_ptr<data_parallel::DdpState> state)
    : ParallelModel(state), state_(std::move(state)) {}

std::vector<std::pair<std::string, at::Tensor>> DistributedModel::averaged_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> averaged;
  const NamedTensors& parameters = state_->parameters();
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    averaged.emplace_back(parameters.names[i], parameters.tensors[i]);
  }
  return averaged;
}

const Communicator& DistributedModel::comm() const { return state_->comm(); }

GradientHook& DistributedModel::hook() const { return state_->hook(); }

Join DistributedModel::join(bool divide_by_initial_size) const { return Join(state_, divide_by_initial_size); }

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

std::optional<DistributedModel> as_distributed(const ParallelModel& model) {
  auto state = std::dynamic_pointer_cast<data_parallel::DdpState>(model.model_state());
  return state ? std::optional<DistributedModel>(std::move(state)) : std::nullopt;
}

DistributedModel distribute_wrapped(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks,
                                    const DdpOptions& options) {
  return DistributedModel(
      data_parallel::DdpState::make(std::move(model), ranks.comm(), options, data_parallel::ForwardNotice::kWrapper));
}

void begin_forward(const DistributedModel& model) {
  // A forward that runs again inside backward, as in recompute(), does not count.
  if (intercept::present_pass() == intercept::Pass::kForward) model.state()->begin_forward();
}

}  // namespace tessera
