// FullySharded: the layers of the GPT-like model are wrapped, and then the model.
#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/recompute/checkpoint.h>

#include <torch/optim.h>
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "parity/gpt_block.h"
#include "parity/reproducible.h"
#include "parity/training.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;

using ShardedLayer = FullySharded<GptBlock>;

/// The values of `plain`'s parameters, by name.
void copy_values(nn::Module& module, const ParityModel& plain, const std::string& prefix) {
  const torch::NoGradGuard no_grad;
  const auto values = plain.named_parameters();
  for (auto& entry : module.named_parameters()) entry.value().copy_(values[prefix + entry.key()]);
}

/// As the parity model, on layers that are wrapped.
struct ExplicitGpt : nn::Module {
  ExplicitGpt(const ParityModel& plain, torch::Dtype dtype, std::shared_ptr<ShardedLayer> first_layer,
              std::shared_ptr<ShardedLayer> second_layer, bool recomputes_activations)
      : tokens(register_module("tokens", nn::Embedding(11, GptBlock::kWidth))),
        places(register_module("places", nn::Embedding(5, GptBlock::kWidth))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({GptBlock::kWidth})))),
        recomputes(recomputes_activations) {
    to(dtype);
    copy_values(*this, plain, "");
    first = register_module("first", std::move(first_layer));
    second = register_module("second", std::move(second_layer));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto x = tokens(input) + places(torch::arange(5)).unsqueeze(1);
    return torch::matmul(norm(run(*second, run(*first, x))), tokens->weight.t());
  }
  torch::Tensor run(ShardedLayer& layer, const torch::Tensor& x) const {
    return recomputes ? checkpoint([&layer](const torch::Tensor& y) { return layer.forward(y); }, x) : layer.forward(x);
  }

  nn::Embedding tokens;
  nn::Embedding places;
  std::shared_ptr<ShardedLayer> first;
  std::shared_ptr<ShardedLayer> second;
  nn::LayerNorm norm;
  bool recomputes;
};

struct Wrapped {
  std::shared_ptr<ParityModel> plain;  // for its data and its loss
  std::shared_ptr<FullySharded<ExplicitGpt>> model;
  std::vector<ShardedModel> blocks;

  torch::Tensor loss(int step, int part) const {
    return plain->loss(model->forward(plain->input(step, part)), step, part);
  }
  State state() const {
    State state = model->handle().full_state_dict();
    const auto add = [&](const std::string& prefix, const ShardedLayer& layer) {
      for (const auto& [name, value] : layer.handle().full_state_dict()) state[prefix + name] = value;
    };
    add("first.", *model->module().first);
    add("second.", *model->module().second);
    return state;
  }
};

Wrapped wrapped(const Communicator& comm, torch::Dtype dtype, const FsdpOptions& options, bool recomputes = false) {
  const auto plain = make_parity_model("gpt", dtype);
  const auto layer = [&](const std::string& prefix) {
    const auto block = std::make_shared<GptBlock>();
    block->to(dtype);
    copy_values(*block, *plain, prefix);
    return std::make_shared<ShardedLayer>(block, comm, options);
  };
  const auto first = layer("first.");
  const auto body = std::make_shared<ExplicitGpt>(*plain, dtype, first, layer("second."), recomputes);
  const auto model = std::make_shared<FullySharded<ExplicitGpt>>(body, comm, options);
  return {plain, model, sharded_blocks_of(*model)};
}

FsdpOptions options_of(const std::string& variant) {
  FsdpOptions options;
  options.min_num_params(10);
  if (variant == "grad op") options.strategy(ShardingStrategy::kShardGradOp);
  if (variant == "zero1") options.strategy(ShardingStrategy::kZero1);
  if (variant == "no shard") options.strategy(ShardingStrategy::kNoShard);
  if (variant == "orig params") options.use_orig_params(true);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Wrapped& gpt) {
  const auto parameters = parameters_of(gpt.blocks);
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
}

State train_explicitly(const ParityCase& parity, const std::string& variant, const Communicator& comm) {
  const Wrapped gpt = wrapped(comm, parity.dtype, options_of(variant), variant == "recomputed");
  require(gpt.blocks.size() == 3, "the model and its two layers");
  const auto optimizer = make_optimizer(parity.optimizer, gpt);
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    for (int micro = 0; micro < parity.micro_batches; ++micro) {
      const int part = comm.rank() * parity.micro_batches + micro;
      std::vector<std::unique_ptr<NoSync>> guards;
      for (const ShardedModel& block : gpt.blocks) {
        if (micro + 1 < parity.micro_batches) guards.push_back(std::make_unique<NoSync>(block));
      }
      const auto loss = gpt.loss(step, part) / parity.micro_batches;
      if (step % 4 == 1) {
        // An evaluation in between; and a forward without backward, whose parameters must not be taken for new ones.
        const torch::NoGradGuard no_grad;
        require(at::equal(gpt.loss(step, part) / parity.micro_batches, loss), "the same loss");
      }
      loss.backward();
    }
    if (step % 4 == 2) std::ignore = gpt.loss(step, 0);
    optimizer->step();
  }
  for (const ShardedModel& block : gpt.blocks) {
    const FsdpStatistics statistics = block.statistics();
    require(variant == "zero1" || statistics.gathered_bytes == 0, "what was gathered is released");
  }
  return gpt.state();
}

class ExplicitParity : public ::testing::TestWithParam<int> {
 protected:
  static void check(ParityCase parity) {
    parity.num_ranks = GetParam();
    const State expected = train_alone(parity);
    for (const auto* variant : {"plain", "grad op", "zero1", "no shard", "orig params", "recomputed"}) {
      try {
        run_threads(parity.num_ranks, [&](const World& world) {
          require_equal(train_explicitly(parity, variant, world.comm()), expected, parity, variant);
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << variant << ": " << error.what();
      }
    }
  }
};

TEST_P(ExplicitParity, SgdInDouble) { check({.model = "gpt", .optimizer = "sgd", .dtype = torch::kDouble}); }
TEST_P(ExplicitParity, SgdInFloat) { check({.model = "gpt", .optimizer = "sgd", .dtype = torch::kFloat}); }
TEST_P(ExplicitParity, AdamWWithAccumulation) {
  check({.model = "gpt", .optimizer = "adamw", .dtype = torch::kDouble, .micro_batches = 2});
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExplicitParity, ::testing::Values(1, 2, 3, 4));

TEST(ExplicitReproducible, GivesTheHashOfDdp) {
  constexpr int kSteps = 10;
  std::mutex mutex;
  std::set<std::uint64_t> hashes;
  for (const int num_ranks : {1, 2, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto options = options_of("plain").reproducible(true).micro_batches(kMicroBatches);
      const Wrapped gpt = wrapped(world.comm(), torch::kFloat, options);
      const auto optimizer = make_optimizer("adamw", gpt);
      const int own = kMicroBatches / world.size();
      for (int step = 0; step < kSteps; ++step) {
        for (int micro = 0; micro < own; ++micro) gpt.loss(step, world.rank() * own + micro).backward();
        clip_grad_norm(gpt.blocks, 0.5);
        optimizer->step();
        optimizer->zero_grad();
      }
      const State state = gpt.state();
      std::vector<at::Tensor> tensors;
      for (const auto& entry : gpt.plain->named_parameters()) tensors.push_back(state.at(entry.key()));
      const std::lock_guard lock(mutex);
      hashes.insert(hash_of(tensors));
    });
  }
  run_threads(1, [&](const World& world) { hashes.insert(train_reproducibly(world.comm(), kSteps)); });
  EXPECT_EQ(hashes.size(), 1U);
}

}  // namespace
}  // namespace tessera::testing
