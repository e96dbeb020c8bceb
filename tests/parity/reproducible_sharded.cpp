#include "parity/reproducible_sharded.h"

#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/watch.h>
#include <tessera/optim/clip_grad_norm.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "parity/models.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

FsdpOptions options_of(const std::string& variant) {
  FsdpOptions options;
  // Single vectors stay whole, as they do in a model of ordinary size.
  options.auto_wrap(wrap_by_size(100)).min_num_params(10).reproducible(true).micro_batches(kMicroBatches);
  if (variant == "one unit") options.auto_wrap(wrap_none()).min_num_params(0);
  if (variant == "tiny units") options.auto_wrap(wrap_by_size(1)).min_num_params(0);
  if (variant == "grad op") options.strategy(ShardingStrategy::kShardGradOp);
  if (variant == "zero1") options.strategy(ShardingStrategy::kZero1);
  if (variant == "no shard") options.strategy(ShardingStrategy::kNoShard);
  return options;
}

ShardedModel shard(const std::shared_ptr<ParityModel>& model, const std::string& variant, const Communicator& comm) {
  if (variant != "hybrid") return fully_shard(model, comm, options_of(variant));
  const int half = std::max(1, comm.size() / 2);
  const auto shards = comm.split_by([half](int rank) { return rank / half; }, "shards");
  const auto replicas = comm.split_by([half](int rank) { return rank % half; }, "replicas");
  return fully_shard(model, shards, replicas, options_of(variant));
}

/// Sleeps now and then when an operator takes a parameter: just before it is gathered, or just after.
class GatherDelays : public intercept::Listener {
 public:
  GatherDelays(const Disturbance& disturbance, int rank) : sleeper_(rarer(disturbance), 1000 + rank) {}
  void on_use(const intercept::Use& /*use*/) override {
    if (std::this_thread::get_id() == thread_) sleeper_.maybe_sleep();
  }

 private:
  /// A pass has some fifty operators that take parameters.
  static Disturbance rarer(Disturbance disturbance) {
    disturbance.delays /= 50;
    return disturbance;
  }

  std::thread::id thread_ = std::this_thread::get_id();
  Sleeper sleeper_;
};

std::uint64_t hash_of_all(const ParityModel& model, const ShardedModel& sharded) {
  const auto state = sharded.full_state_dict();
  std::vector<at::Tensor> tensors;
  for (const auto& entry : model.named_parameters()) tensors.push_back(state.at(entry.key()));
  return hash_of(tensors);
}

}  // namespace

const std::vector<std::string>& reproducible_variants() {
  static const std::vector<std::string> names{"full",  "one unit", "tiny units", "grad op",
                                              "zero1", "no shard", "hybrid"};
  return names;
}

std::uint64_t train_reproducibly_sharded(const Communicator& comm, int num_steps, const std::string& variant,
                                         const Disturbance& disturbance) {
  const auto model = make_parity_model(disturbance.model, torch::kFloat);
  const ShardedModel sharded = shard(model, variant, comm);
  const auto optimizer = make_adamw(sharded.parameters(), disturbance.fused);
  Sleeper sleeper(disturbance, comm.rank());
  const auto delays = std::make_shared<GatherDelays>(disturbance, comm.rank());
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& parameter : model->parameters()) aliases.push_back(parameter.detach());
  const intercept::Watch watch(disturbance.delays > 0 ? aliases : std::vector<at::Tensor>(), delays);
  const int own = kMicroBatches / comm.size();
  std::vector<int> order(static_cast<std::size_t>(own));
  std::iota(order.begin(), order.end(), 0);
  bool has_clipped = false;
  for (int step = 0; step < num_steps; ++step) {
    if (disturbance.shuffle) std::shuffle(order.begin(), order.end(), sleeper.random());
    for (const int micro : order) {
      const int part = comm.rank() * own + micro;
      if (disturbance.shuffle) sharded.set_micro_batch(micro);
      sleeper.maybe_sleep();
      const auto loss = model->loss(model->forward(model->input(step, part)), step, part);
      sleeper.maybe_sleep();
      loss.backward();
    }
    has_clipped = clip_grad_norm(sharded, 0.5) > 0.5 || has_clipped;
    sleeper.maybe_sleep();
    optimizer->step();
    optimizer->zero_grad();
  }
  require(has_clipped || disturbance.model != "gpt", "a norm that is clipped");
  return hash_of_all(*model, sharded);
}

}  // namespace tessera::testing
