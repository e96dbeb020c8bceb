#include "train/state/trainee.h"

#include <tessera/data_parallel/gradient_hooks.h>
#include <tessera/optim/adamw.h>

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "train/state/memory_step.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kBatch = 24;  // over all ranks
constexpr int kMicroBatches = 8;     // in reproducible mode

at::Tensor wave(at::IntArrayRef shape, double phase) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.37 + 1.7 * phase).view(shape);
}

bool is_reproducible(const std::string& variant) { return variant.ends_with("reproducible"); }

FsdpOptions fsdp_options(const std::string& variant) {
  auto options = FsdpOptions().auto_wrap(wrap_by_size(1)).min_num_params(0);
  if (variant.starts_with("grad_op")) options.strategy(ShardingStrategy::kShardGradOp);
  if (variant.starts_with("zero1")) options.strategy(ShardingStrategy::kZero1);
  if (variant.starts_with("no_shard")) options.strategy(ShardingStrategy::kNoShard);
  if (variant.ends_with("orig")) options.use_orig_params(true);
  if (variant.ends_with("small whole")) options.min_num_params(20);
  if (variant.ends_with("one unit")) options.auto_wrap(wrap_none());
  if (variant.ends_with("own copy")) options.shared_copy(false);
  if (variant.ends_with("mixed")) options.param_dtype(at::kFloat);
  if (is_reproducible(variant)) options.reproducible(true).micro_batches(kMicroBatches);
  return options;
}

DdpOptions ddp_options(const std::string& variant) {
  auto options = DdpOptions().bucket_bytes(200).first_bucket_bytes(100);
  if (variant.ends_with("int8")) options.hook(int8_hook(Int8HookOptions().block(8)));
  if (variant.ends_with("powersgd")) {
    options.hook(power_sgd_hook(PowerSgdOptions().rank(1).start_step(2).min_compression(1)));
  }
  if (is_reproducible(variant)) options.reproducible(true).micro_batches(kMicroBatches);
  return options;
}

}  // namespace

Trainee::Trainee(bool feels_drift) : feels_drift_(feels_drift) {
  last = register_module("last", torch::nn::Linear(7, 6));
  first = register_module("first", torch::nn::Linear(6, 7));
  middle = register_module("middle", torch::nn::Linear(7, 7));
  to(at::kDouble);
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : parameters()) parameter.copy_(0.4 * wave(parameter.sizes(), ++phase));
  tied = register_parameter("tied", middle->weight);
  frozen = register_parameter("frozen", wave({7}, 3), /*requires_grad=*/false);
  seen = register_buffer("seen", at::zeros({}, at::kLong));
  drift = register_buffer("drift", at::zeros({3}, at::kDouble));
}

at::Tensor Trainee::forward(const at::Tensor& x) {
  at::Tensor hidden = at::tanh(first(x));
  hidden = at::tanh(middle(hidden)) + frozen;
  hidden = at::tanh(at::linear(hidden, tied));
  const at::Tensor output = last(hidden) + (feels_drift_ ? 0.1 * drift.sum() : at::zeros({}, at::kDouble));
  const at::NoGradGuard no_grad;
  seen.add_(1);
  drift.mul_(0.9).add_(x.mean());
  return output;
}

const std::vector<std::string>& trainee_variants() {
  static const std::vector<std::string> names{
      "alone",         "ddp",        "ddp reproducible", "full",    "full orig", "full small whole",
      "full one unit", "full mixed", "full own copy",    "grad_op", "zero1",     "zero1 orig",
      "no_shard",      "hybrid",     "full reproducible"};
  return names;
}

bool is_in_float(const std::string& variant) { return variant.ends_with("mixed") || variant.ends_with("fp32"); }

bool fits(const std::string& variant, int num_ranks) {
  if (variant.starts_with("alone")) return num_ranks == 1;
  if (variant.starts_with("hybrid")) return num_ranks % 2 == 0;
  return !is_reproducible(variant) || kMicroBatches % num_ranks == 0;
}

const std::vector<std::string>& trainee_optimizers() {
  static const std::vector<std::string> names{"sgd", "plain sgd", "adam", "adamw", "fused adamw", "adagrad", "rmsprop"};
  return names;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  namespace to = torch::optim;
  if (name == "sgd") return std::make_unique<to::SGD>(parameters, to::SGDOptions(0.05).momentum(0.9));
  if (name == "plain sgd") return std::make_unique<to::SGD>(parameters, to::SGDOptions(0.05));
  if (name == "adam") return std::make_unique<to::Adam>(parameters, to::AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_unique<to::AdamW>(parameters, to::AdamWOptions(0.01));
  if (name == "fused adamw") return std::make_unique<optim::AdamW>(parameters, to::AdamWOptions(0.01));
  if (name == "adagrad") {
    return std::make_unique<to::Adagrad>(parameters, to::AdagradOptions(0.05).initial_accumulator_value(0.1));
  }
  return std::make_unique<to::RMSprop>(parameters, to::RMSpropOptions(0.005).momentum(0.5).centered(true));
}

int num_parts(const std::string& variant, int num_ranks) {
  return is_reproducible(variant) ? kMicroBatches : num_ranks;
}

SharedTrainee::SharedTrainee(const World& world, const std::string& variant, bool feels_drift)
    : model(std::make_shared<Trainee>(feels_drift)) {
  if (variant.ends_with("fp32")) model->to(at::kFloat);
  if (variant.starts_with("alone")) {
    // Each once: LibTorch's optimizers step a parameter as often as they are given it.
    for (const auto& entry : model->named_parameters()) {
      if (entry.key() != "middle.weight") trained.push_back(entry.value());
    }
  } else if (variant.starts_with("ddp")) {
    ddp = distribute(model, world, ddp_options(variant));
    trained = ddp->parameters();
  } else {
    const int half = std::max(world.size() / 2, 1);
    const auto shards = world.comm().split_by([half](int rank) { return rank / half; }, "shards");
    const auto replicas = world.comm().split_by([half](int rank) { return rank % half; }, "replicas");
    sharded = variant.starts_with("hybrid") ? fully_shard(model, shards, replicas, fsdp_options(variant))
                                            : fully_shard(model, world, fsdp_options(variant));
    trained = sharded->parameters();
  }
}

void SharedTrainee::register_in(TrainingState& state) const {
  if (ddp) {
    state.model(*ddp);
  } else if (sharded) {
    state.model(*sharded);
  } else {
    state.model(model);
  }
}

Weights SharedTrainee::weights() const {
  Weights weights;
  if (sharded) weights = sharded->full_state_dict();
  for (const auto& entry : model->named_parameters()) {
    if (!sharded) weights[entry.key()] = entry.value().detach().clone();
  }
  for (const auto& entry : model->named_buffers()) weights.erase(entry.key());
  return weights;
}

TraineeRun::TraineeRun(const World& world, const std::string& variant, const std::string& optimizer, bool feels_drift)
    : world_(world),
      variant_(variant),
      shared_(world, variant, feels_drift),
      optimizer_(make_optimizer(optimizer, shared_.trained)),
      state_(std::make_unique<TrainingState>(world)) {
  shared_.register_in(*state_);
  state_->optimizer(*optimizer_).value("step", step_);
}

void TraineeRun::backward(int part) {
  const auto samples = kBatch / num_parts(variant_, world_.size());
  at::Tensor x = wave({kBatch, 6}, static_cast<double>(step_)).narrow(0, part * samples, samples);
  if (is_in_float(variant_)) x = x.to(at::kFloat);
  const at::Tensor target = wave({kBatch, 6}, 0.3 * static_cast<double>(step_)).narrow(0, part * samples, samples);
  (shared_.model->forward(x) - target).square().mean().backward();
}

void TraineeRun::train(int num_steps) {
  const int own = num_parts(variant_, world_.size()) / world_.size();
  for (int i = 0; i < num_steps; ++i, ++step_) {
    optimizer_->zero_grad();
    for (int part = 0; part < own; ++part) backward(world_.rank() * own + part);
    optimizer_->step();
  }
}

void train_and_save(const World& world, const std::string& variant, const std::string& optimizer, int num_steps,
                    MemoryStep& step, bool feels_drift) {
  TraineeRun run(world, variant, optimizer, feels_drift);
  run.train(num_steps);
  step.add(run.state().capture());
}

}  // namespace tessera::testing
