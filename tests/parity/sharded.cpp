#include "parity/sharded.h"

#include <tessera/fsdp/fully_shard.h>

#include <torch/optim.h>

#include <memory>
#include <optional>

#include "support/require.h"

namespace tessera::testing {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const ShardedModel& sharded) {
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(sharded.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(sharded.parameters(), torch::optim::AdamWOptions(0.01));
}

FsdpOptions sharded_options_of(const std::string& variant) {
  // The models are small: units of some hundred elements, and only single vectors stay whole.
  FsdpOptions options;
  options.auto_wrap(wrap_by_size(100)).min_num_params(10);
  if (variant == "one unit") options.auto_wrap(wrap_none());
  if (variant == "tiny units") options.auto_wrap(wrap_by_size(1)).min_num_params(0);
  if (variant == "grad op") options.strategy(ShardingStrategy::kShardGradOp);
  if (variant == "zero1") options.strategy(ShardingStrategy::kZero1);
  if (variant == "no shard") options.strategy(ShardingStrategy::kNoShard);
  if (variant == "post") options.backward_prefetch(BackwardPrefetch::kPost);
  if (variant == "no prefetch") options.backward_prefetch(BackwardPrefetch::kNone).forward_prefetch(false);
  if (variant == "far ahead") options.limit_all_gathers(false);
  if (variant == "orig params") options.use_orig_params(true);
  if (variant == "own copies") options.shared_copy(false);
  if (variant == "own grad op") options.shared_copy(false).strategy(ShardingStrategy::kShardGradOp);
  if (variant == "own zero1") options.shared_copy(false).strategy(ShardingStrategy::kZero1);
  if (variant == "own far ahead") options.shared_copy(false).limit_all_gathers(false).use_orig_params(true);
  return options;
}

ShardedModel shard_variant(const std::shared_ptr<ParityModel>& model, const std::string& variant,
                           const Communicator& comm) {
  if (variant != "hybrid") return fully_shard(model, comm, sharded_options_of(variant));
  const int half = comm.size() % 2 == 0 ? comm.size() / 2 : comm.size();
  const auto shards = comm.split_by([half](int rank) { return rank / half; }, "shards");
  const auto replicas = comm.split_by([half](int rank) { return rank % half; }, "replicas");
  return fully_shard(model, shards, replicas, sharded_options_of(variant));
}

}  // namespace

const std::vector<std::string>& sharded_variants() {
  static const std::vector<std::string> names{
      "plain",       "one unit",  "tiny units",  "grad op",    "zero1",       "no shard",  "hybrid",       "post",
      "no prefetch", "far ahead", "orig params", "own copies", "own grad op", "own zero1", "own far ahead"};
  return names;
}

State train_sharded(const ParityCase& parity, const std::string& variant, const Communicator& comm) {
  const auto model = make_parity_model(parity.model, parity.dtype);
  const auto device = device_of(parity.device_type, comm.rank());
  model->to(device);
  if (comm.rank() > 0) {
    // What rank 0 broadcasts at the start must replace this.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(100 + comm.rank());
  }
  const ShardedModel sharded = shard_variant(model, variant, comm);
  const auto optimizer = make_optimizer(parity.optimizer, sharded);
  for (int step = 0; step < parity.num_steps; ++step) {
    optimizer->zero_grad();
    for (int micro = 0; micro < parity.micro_batches; ++micro) {
      const int part = comm.rank() * parity.micro_batches + micro;
      const auto backward = [&] {
        const auto output = model->forward(model->input(step, part).to(device));
        (model->loss(output, step, part) / parity.micro_batches).backward();
      };
      // Every other step averages each micro-batch by itself, which gives the same.
      if (micro + 1 < parity.micro_batches && step % 2 == 0) {
        const auto guard = sharded.no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer->step();
  }
  State state;
  for (const auto& [name, value] : sharded.full_state_dict()) {
    const bool is_buffer = model->named_buffers().contains(name);
    state[is_buffer ? "buffer " + name : name] = value.cpu();
  }
  return state;
}

}  // namespace tessera::testing
