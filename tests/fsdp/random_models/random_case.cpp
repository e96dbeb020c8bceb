#include "fsdp/random_models/random_case.h"

#include <torch/torch.h>

#include "fsdp/random_models/dice.h"
#include "fsdp/random_models/random_model.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr std::int64_t kBatchSize = 2;
constexpr std::int64_t kLength = 3;

WrapPolicy random_policy(Dice& dice) {
  switch (dice.below(4)) {
    case 0:
      return wrap_by_size(1 + dice.below(150));
    case 1:
      return wrap_by_type(dice.pick(std::vector<std::vector<std::string>>{
          {"Linear"}, {"tessera::testing::Node"}, {"GRU", "LSTM", "Embedding", "LayerNorm"}, {"Node", "Linear"}}));
    case 2:
      return {"every other name", [](const torch::nn::Module&, const std::string& name, std::int64_t num_elements) {
                return (static_cast<std::int64_t>(name.size()) + num_elements) % 2 == 0;
              }};
    default:
      return wrap_none();
  }
}

FsdpOptions random_options(Dice& dice) {
  FsdpOptions options;
  options.strategy(dice.pick(std::vector<ShardingStrategy>{
      ShardingStrategy::kFullShard, ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
      ShardingStrategy::kZero1, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}));
  options.auto_wrap(random_policy(dice));
  options.min_num_params(dice.pick(std::vector<std::int64_t>{0, 1, 10, 40, 1000}));
  options.backward_prefetch(dice.pick(
      std::vector<BackwardPrefetch>{BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}));
  options.forward_prefetch(dice.chance(70));
  options.limit_all_gathers(dice.chance(50));
  options.use_orig_params(dice.chance(40));
  options.init_sync(dice.chance(70));
  options.broadcast_buffers(dice.chance(70));
  options.shared_copy(dice.chance(50));
  options.max_unit_bytes(dice.pick(std::vector<std::int64_t>{std::int64_t{32} << 20, 0, 400, 100, 1}));
  return options;
}

StepPlan random_step(Dice& dice) {
  StepPlan step;
  step.num_micro_batches = 1 + static_cast<int>(dice.below(2));
  step.one_backward = dice.chance(40);
  step.no_sync = dice.chance(50);
  step.penalty = dice.chance(15);
  step.evaluate_first = dice.chance(25);
  step.evaluate_between = dice.chance(15);
  step.evaluate_after = dice.chance(15);
  step.max_norm = dice.chance(40) ? 0.3 : 0;
  return step;
}

Tensor wave(double phase, at::IntArrayRef shape) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + phase).view(shape);
}

}  // namespace

Batch make_batch(int step, int rank, int micro) {
  Batch batch;
  batch.x = wave(step * 0.9 + rank * 2.3 + micro * 0.4, {kBatchSize, kLength, kWidth});
  batch.ids = (torch::arange(kBatchSize * kLength, torch::kLong) * 3 + step + 2 * rank + micro)
                  .remainder(kNumWords)
                  .view({kBatchSize, kLength});
  // The same on every rank, and not from step to step.
  batch.switches = wave(step * 2.1 + micro * 0.8, {kNumSwitches});
  return batch;
}

Tensor loss_of(Node& model, const StepPlan& plan, Batch& batch) {
  if (plan.penalty) batch.x.requires_grad_(true);
  const Tensor y = model.forward(batch.x, batch);
  Tensor loss = (y - wave(0.3, y.sizes())).square().mean();
  if (!plan.penalty) return loss;
  const Tensor slope = torch::autograd::grad({y.sum()}, {batch.x}, {}, true, true, /*allow_unused=*/true).front();
  return slope.defined() ? loss + 0.1 * slope.square().mean() : loss;
}

namespace {

Tensor evaluate(Node& model, int step) {
  const torch::NoGradGuard no_grad;
  Batch batch = make_batch(step + 10, 0, 0);
  batch.may_recompute = true;
  model.eval();
  Tensor y = model.forward(batch.x, batch);
  model.train();
  return y;
}

}  // namespace

RandomCase make_random_case(std::uint64_t seed) {
  Dice dice(seed + 1'000'003);
  RandomCase one;
  one.seed = seed;
  one.num_ranks = 1 + static_cast<int>(dice.below(4));
  one.options = random_options(dice);
  if (one.options.strategy() == ShardingStrategy::kHybridShard) {
    std::vector<int> divisors;
    for (int i = 1; i <= one.num_ranks; ++i) {
      if (one.num_ranks % i == 0) divisors.push_back(i);
    }
    one.num_replicas = dice.pick(divisors);
  }
  one.steps.resize(static_cast<std::size_t>(2 + dice.below(2)));
  for (StepPlan& step : one.steps) step = random_step(dice);
  return one;
}

std::string RandomCase::text() const {
  std::string text = "seed " + std::to_string(seed) + ", " + std::to_string(num_ranks) + " ranks in " +
                     std::to_string(num_replicas) + " replicas, wrap policy " + options.auto_wrap().text();
  for (const auto& field : FsdpOptions::fields().fields()) {
    text += ", " + field.key + " " + FsdpOptions::fields().get_text(options, field.key);
  }
  return text + steps_text();
}

std::string RandomCase::steps_text() const {
  std::string text;
  for (const StepPlan& step : steps) {
    text += "\nstep: " + std::to_string(step.num_micro_batches) + " micro-batches";
    if (step.one_backward) text += ", one backward";
    if (step.no_sync) text += ", no_sync";
    if (step.penalty) text += ", gradient penalty";
    if (step.evaluate_first) text += ", evaluation first";
    if (step.evaluate_between) text += ", evaluation before backward";
    if (step.evaluate_after) text += ", evaluation after backward";
    if (step.max_norm > 0) text += ", clipped";
  }
  return text;
}

std::vector<Tensor> play_step(const RandomCase& one, int step, int rank, Node& model, const StepWays& ways) {
  const StepPlan& plan = one.steps[static_cast<std::size_t>(step)];
  std::vector<Tensor> evaluations;
  if (plan.evaluate_first) evaluations.push_back(evaluate(model, step));
  Tensor total = torch::zeros({}, torch::kDouble);
  for (int micro = 0; micro < plan.num_micro_batches; ++micro) {
    const bool is_last = micro + 1 == plan.num_micro_batches;
    Batch batch = make_batch(step, rank, micro);
    batch.may_recompute = ways.may_recompute;
    batch.num_then = ways.num_then;
    batch.num_else = ways.num_else;
    const Tensor loss = loss_of(model, plan, batch) * (ways.loss_weight / plan.num_micro_batches);
    if (ways.losses) ways.losses->push_back(loss.detach());
    total = plan.one_backward ? total + loss : loss;
    if (is_last && plan.evaluate_between) evaluations.push_back(evaluate(model, step));
    if (plan.one_backward && !is_last) continue;
    const auto backward = [&] { total.backward(); };
    if (plan.no_sync && !is_last) {
      ways.without_sync(backward);
    } else {
      backward();
    }
  }
  if (plan.evaluate_after) evaluations.push_back(evaluate(model, step));
  return evaluations;
}

}  // namespace tessera::testing
