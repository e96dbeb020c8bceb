#include "offload/training.h"

#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <memory>

namespace tessera::testing {
namespace {

constexpr int kWords = 11;
constexpr int kBatch = 6;

/// Layers of all kinds, a weight that two of them share, and a frozen one.
struct Net : torch::nn::Module {
  explicit Net(int width)
      : words(register_module("words", torch::nn::Embedding(kWords, width))),
        first(register_module("first", torch::nn::Linear(width, width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        second(register_module("second", torch::nn::Linear(width, 17))),
        frozen(register_module("frozen", torch::nn::Linear(17, width))) {
    // By hand: ranks that are threads share LibTorch's generator.
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor values = at::sin(at::arange(parameter.numel(), at::kDouble) * 0.9 + ++phase) * 0.3;
      parameter.copy_(values.view(parameter.sizes()));
    }
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor hidden = at::gelu(norm(first(words(tokens))));
    return at::matmul(frozen(at::tanh(second(hidden))), words->weight.t());
  }

  torch::nn::Embedding words;
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear second;
  torch::nn::Linear frozen;
};

at::Tensor loss_of(Net& net, int step, int rank, int micro_batch) {
  const at::Tensor tokens =
      at::remainder(at::arange(kBatch, at::kLong) * 3 + step + 5 * rank + 2 * micro_batch, kWords);
  const at::Tensor targets = at::remainder(tokens * 2 + 1, kWords);
  return at::cross_entropy_loss(net.forward(tokens).to(at::kFloat), targets);
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const OffloadTraining& training, std::vector<at::Tensor> all) {
  if (training.uses_sgd) {
    return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  return std::make_unique<optim::AdamW>(std::move(all),
                                        optim::AdamWOptions(1e-2).weight_decay(0.05).amsgrad(training.amsgrad));
}

Weights train_rank(const OffloadTraining& training, const World& world) {
  const auto net = std::make_shared<Net>(training.width);
  std::optional<Offload> offload;
  FsdpOptions options = training.fsdp;
  if (training.offload) {
    offload.emplace(*training.offload);
    options.flat_sources(offload->sources());
  }
  const ShardedModel sharded = fully_shard(net, world, options);
  const auto optimizer = optimizer_of(training, sharded.parameters());
  std::int64_t first_step = 0;
  std::optional<CheckpointFolder> checkpoints;
  TrainingState state(world);
  if (!training.checkpoints.empty()) {
    state.model(sharded).optimizer(*optimizer).value("first_step", first_step);
    checkpoints.emplace(training.checkpoints, world);
    checkpoints->load_newest([&](const SavedStep& saved) { state.restore(saved); });
  }
  for (int step = static_cast<int>(first_step); step < training.num_steps; ++step) {
    optimizer->zero_grad();
    for (int micro_batch = 0; micro_batch < training.num_micro_batches; ++micro_batch) {
      std::optional<NoSync> no_sync;
      if (!training.averages_each && micro_batch + 1 < training.num_micro_batches) no_sync.emplace(sharded);
      loss_of(*net, step, world.rank(), micro_batch).backward();
    }
    clip_grad_norm(sharded, 0.5);
    try {
      optimizer->step();
    } catch (const StorageError&) {
      const auto use = [&] { static_cast<void>(loss_of(*net, step, world.rank(), 0)); };
      if (training.on_failed_step) training.on_failed_step(use);
      throw;
    }
    if (training.after_step) training.after_step(world, offload ? &*offload : nullptr, step);
  }
  if (checkpoints) {
    first_step = training.num_steps;
    EXPECT_TRUE(checkpoints->save(training.num_steps, state.capture()).error.empty());
  }
  Weights weights;
  for (auto& [name, value] : sharded.full_state_dict()) weights.push_back(value);
  return weights;
}

}  // namespace

Weights train(const OffloadTraining& training) {
  Weights of_first;
  run_threads(training.num_ranks, [&](const World& world) {
    Weights weights = train_rank(training, world);
    if (world.rank() == 0) of_first = std::move(weights);
  });
  return of_first;
}

void expect_same_bits(const Weights& found, const Weights& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i]))
        << where << ": parameter " << i << " differs by " << (found[i] - expected[i]).abs().max().item<double>();
  }
}

}  // namespace tessera::testing
