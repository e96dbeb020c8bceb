#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <latch>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/gather_schedule.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::require;
using testing::require_equal;

/// Layers of one size, to choose from.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(int num_layers, std::int64_t width = 8) {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < num_layers; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
      layers.back()->to(torch::kDouble);
      layers.back()->weight.copy_(torch::arange(width * width, torch::kDouble).sin().view({width, width}) * (i + 1));
      layers.back()->bias.fill_(0.1 * i);
    }
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<int>& which) {
    for (const int i : which) x = layers[static_cast<std::size_t>(i)](x).tanh();
    return x;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Layers);

torch::Tensor input_of(int rank, std::int64_t width = 8) {
  return torch::arange(2 * width, torch::kDouble).add(rank).cos().view({2, width});
}

torch::Tensor loss_of(Layers& model, const std::vector<int>& which, int rank) {
  return model->forward(input_of(rank), which).square().sum();
}

FsdpOptions every_layer() { return FsdpOptions().auto_wrap(wrap_by_type<torch::nn::LinearImpl>()).min_num_params(0); }

double sum_of(const std::vector<at::Tensor>& parameters) {
  double sum = 0;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) sum += parameter.grad().abs().sum().item<double>();
  }
  return sum;
}

/// The gradients of one process that averages the losses of both ranks.
std::vector<at::Tensor> expected_gradients(const std::vector<int>& which) {
  Layers model(2);
  ((loss_of(model, which, 0) + loss_of(model, which, 1)) / 2).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

TEST(FullyShard, AveragesGradientsOfModelsTooSmallToShard) {
  const auto expected = expected_gradients({0, 1});
  run_threads(2, [&](const World& world) {
    Layers model(2);
    const ShardedModel sharded = fully_shard(model, world);  // every parameter has fewer than 1000 elements
    loss_of(model, {0, 1}, world.rank()).backward();
    const auto parameters = sharded.parameters();
    require_equal(parameters.size(), expected.size(), "the number of parameters");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      require(torch::allclose(parameters[i].grad(), expected[i], 1e-12), "gradient " + std::to_string(i));
    }
  });
}

TEST(FullyShard, AveragesGradientsWhenAllThatIsInShardsIsFrozen) {
  const auto expected = expected_gradients({0, 1});
  run_threads(2, [&](const World& world) {
    Layers model(2);
    for (const auto& layer : model->layers) layer->weight.set_requires_grad(false);
    const ShardedModel sharded = fully_shard(model, world, every_layer().min_num_params(10));
    loss_of(model, {0, 1}, world.rank()).backward();
    require(torch::allclose(model->layers[0]->bias.grad(), expected[1], 1e-12), "the gradient of a bias");
  });
}

TEST(FullyShard, ClippingKnowsOfNoGradientThatWasCleared) {
  run_threads(2, [](const World& world) {
    Layers model(2);
    const ShardedModel sharded = fully_shard(model, world, every_layer().use_orig_params(true));
    torch::optim::SGD optimizer(sharded.parameters(), 0.0);
    loss_of(model, {0, 1}, world.rank()).backward();
    const double of_both = clip_grad_norm(sharded, 1e9);
    optimizer.zero_grad();
    loss_of(model, {0}, world.rank()).backward();
    const double of_first = clip_grad_norm(sharded, 1e9);
    Layers alone(2);
    ((loss_of(alone, {0}, 0) + loss_of(alone, {0}, 1)) / 2).backward();
    const double expected = alone->layers[0]->weight.grad().square().sum().item<double>() +
                            alone->layers[0]->bias.grad().square().sum().item<double>();
    require(std::abs(of_first * of_first - expected) < 1e-9 * expected, "the norm: " + std::to_string(of_first));
    require(of_both > 0, "the norm before");
  });
}

TEST(FullyShard, OptimizersOfSlicesClearTheirOwnGradients) {
  run_threads(2, [](const World& world) {
    Layers model(1);
    const ShardedModel sharded = fully_shard(model, world, every_layer().use_orig_params(true));
    const auto slices = sharded.parameters();  // weight and bias
    torch::optim::SGD of_weights({slices[0]}, 0.0);
    loss_of(model, {0}, world.rank()).backward();
    const at::Tensor once = slices[1].grad().clone();
    of_weights.zero_grad();
    loss_of(model, {0}, world.rank()).backward();
    require(torch::allclose(slices[1].grad(), once * 2, 1e-12), "a gradient that nobody cleared adds up");
  });
}

TEST(FullyShard, ZeroGradOfTheModelClearsItsShards) {
  for (const bool slices : {false, true}) {
    run_threads(2, [slices](const World& world) {
      Layers model(2);
      const ShardedModel sharded = fully_shard(model, world, every_layer().use_orig_params(slices));
      loss_of(model, {0, 1}, world.rank()).backward();
      const double once = sum_of(sharded.parameters());
      loss_of(model, {0, 1}, world.rank()).backward();
      require(world.rank() > 0 || sum_of(sharded.parameters()) > 1.5 * once, "gradients add up");
      model->zero_grad();
      loss_of(model, {0, 1}, world.rank()).backward();
      require(std::abs(sum_of(sharded.parameters()) - once) <= 1e-12 * once, "gradients were cleared");
      model->zero_grad();
      {
        const auto guard = sharded.no_sync();
        loss_of(model, {0, 1}, world.rank()).backward();
      }
      model->zero_grad();
      loss_of(model, {0, 1}, world.rank()).backward();
      require(std::abs(sum_of(sharded.parameters()) - once) <= 1e-12 * once, "so were those that waited");
    });
  }
}

TEST(FullyShard, RefusesRanksThatChooseDifferentlyBetweenEqualUnits) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    const auto text = message_of<ConfigError>([strategy] {
      run_threads(2, [strategy](const World& world) {
        Layers model(2);
        const ShardedModel sharded = fully_shard(model, world, every_layer().strategy(strategy).shared_copy(false));
        loss_of(model, {world.rank()}, world.rank()).backward();
      });
    });
    expect_parts(text, {"do not take the same path through the model", "rank 1 has", "layer1", "rank 0 has", "layer0"});
  }
}

TEST(FullyShard, TellsRanksOfOtherShardsWhoseOwnPathsAgree) {
  run_threads(4, [](const World& world) {
    const auto shards = world.comm().split_by([](int rank) { return rank / 2; }, "shards");
    const auto replicas = world.comm().split_by([](int rank) { return rank % 2; }, "replicas");
    Layers model(2);
    const ShardedModel sharded = fully_shard(model.ptr(), shards, replicas, every_layer().shared_copy(false));
    const int layer = world.rank() == 3 ? 1 : 0;
    const auto text = message_of<ConfigError>([&] { loss_of(model, {layer}, world.rank()).backward(); });
    const bool meets_rank_3 = world.rank() % 2 == 1;
    expect_parts(text, {"do not take the same path through the model",
                        meets_rank_3 ? "layer1" : "others than the ranks of its own shards"});
  });
}

TEST(FullyShard, RefusesRanksThatUseUnitsOfDifferentSizes) {
  // The kernel that needed the unit says it: what a collective throws inside a callback cannot get out by itself.
  const auto text = message_of<c10::Error>([] {
    run_threads(2, [](const World& world) {
      torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 24));
      const ShardedModel sharded = fully_shard(model.ptr(), world, every_layer().shared_copy(false));
      const auto layer = model->ptr<torch::nn::LinearImpl>(static_cast<std::size_t>(world.rank()));
      layer->forward(torch::ones({2, 8})).sum().backward();
    });
  });
  expect_parts(text, {"all_gather", "rank"});
}

TEST(FullyShard, TellsRanksThatWaitForDifferentUnitsOfACommonCopy) {
  const auto wait_half_a_second = WorldOptions().timeout(std::chrono::milliseconds(500));
  const auto text = message_of<c10::Error>([&] {
    run_threads(
        2,
        [](const World& world) {
          Layers model(2);
          const ShardedModel sharded = fully_shard(model, world, every_layer());
          loss_of(model, {world.rank()}, world.rank()).backward();
        },
        wait_half_a_second);
  });
  expect_parts(text, {"the parameters of \"layer", "are not all there", "waits for rank"});
}

TEST(FullyShard, GathersThatFailedFailAgainAndGiveNothing) {
  for (const bool shared : {true, false}) {
    std::latch tried(1);
    run_threads(
        2,
        [&](const World& world) {
          Layers model(1);
          const ShardedModel sharded = fully_shard(model, world, every_layer().shared_copy(shared));
          if (world.rank() == 1) {
            tried.wait();
            return;
          }
          for (int i = 0; i < 2; ++i) {
            EXPECT_THROW(loss_of(model, {0}, 0), std::exception) << "shared " << shared << ", time " << i;
          }
          const torch::NoGradGuard no_grad;
          EXPECT_THROW(model->parameters().front().sum().item<double>(), std::exception) << "shared " << shared;
          tried.count_down();
        },
        WorldOptions().timeout(std::chrono::milliseconds(300)));
  }
}

TEST(FullyShard, TellsAWriterWhoStillReadsACommonCopy) {
  std::latch refused(1);
  run_threads(
      2,
      [&](const World& world) {
        Layers model(1);
        const ShardedModel sharded = fully_shard(model, world, every_layer());
        std::optional<Whole> whole(std::in_place, sharded);
        if (world.rank() == 1) {
          refused.wait();
          return;
        }
        whole.reset();
        const torch::NoGradGuard no_grad;
        const at::Tensor before = sharded.parameters().front().clone();
        expect_parts(message_of<c10::Error>([&] { sharded.parameters().front().zero_(); }),
                     {"the parameters of \"layer0\"", "are still read, and cannot be written", "waits for rank 1"});
        require_equal(sharded.parameters().front(), before, "nothing was written");
        refused.count_down();
      },
      WorldOptions().timeout(std::chrono::milliseconds(500)));
}

TEST(SamePath, TellsThatRanksPartBeyondWhatItRecords) {
  run_threads(2, [](const World& world) {
    fsdp::SamePath path;
    for (int i = 0; i < 10'000; ++i) path.note(fsdp::SamePath::Event::kGather, 0);
    path.note(fsdp::SamePath::Event::kGather, world.rank());
    const auto name = [](int unit) { return "layer" + std::to_string(unit); };
    expect_parts(message_of<ConfigError>([&] { path.require_agreement(world.comm(), name); }),
                 {"they part after 10000 gathers and averages"});
  });
}

TEST(FullyShard, StateHasEveryNameOfASharedParameter) {
  run_threads(2, [](const World& world) {
    Layers model(2);
    model->register_parameter("tied", model->layers[1]->weight);
    const auto state = fully_shard(model, world, every_layer()).full_state_dict();
    require(state.contains("tied") && state.contains("layer1.weight"), "a name is missing");
    require(state.at("tied").equal(state.at("layer1.weight")), "two names, two values");
  });
}

TEST(FullyShard, LeavesBuffersAloneBetweenTwoForwardsWithAGradientInTheLoss) {
  run_threads(2, [](const World& world) {
    torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8));
    model->eval();  // backward needs the running statistics, and autograd counts who writes to them
    const ShardedModel sharded = fully_shard(model.ptr(), world, every_layer());
    torch::Tensor total = torch::zeros({});
    for (int i = 0; i < 2; ++i) {
      const auto x = torch::ones({2, 8}).mul(i + 1 + world.rank()).requires_grad_(true);
      const auto y = model->forward(x);
      const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true).front();
      total = total + y.square().sum() + slope.square().sum();
    }
    total.backward();
    require(sum_of(sharded.parameters()) > 0 || world.rank() > 0, "there are gradients");
  });
}

TEST(FullyShard, TrainsTwoModelsInOneGraph) {
  Layers first(1);
  Layers second(1);
  for (const int rank : {0, 1}) {
    (second->forward(first->forward(input_of(rank), {0}), {0}).square().sum() / 2).backward();
  }
  run_threads(2, [&](const World& world) {
    Layers left(1);
    Layers right(1);
    const ShardedModel left_shards = fully_shard(left, world, every_layer().use_orig_params(true));
    const ShardedModel right_shards = fully_shard(right, world, every_layer().use_orig_params(true));
    for (int step = 0; step < 2; ++step) {
      torch::optim::SGD(left_shards.parameters(), 0.0).zero_grad();
      torch::optim::SGD(right_shards.parameters(), 0.0).zero_grad();
      right->forward(left->forward(input_of(world.rank()), {0}), {0}).square().sum().backward();
      double squares = 0;
      for (const auto& model : {first, second}) {
        for (const at::Tensor& parameter : model->parameters())
          squares += parameter.grad().square().sum().item<double>();
      }
      const double left_norm = clip_grad_norm(left_shards, 1e9);
      const double right_norm = clip_grad_norm(right_shards, 1e9);
      require(std::abs(left_norm * left_norm + right_norm * right_norm - squares) < 1e-9 * squares, "the norms");
    }
  });
}

}  // namespace
}  // namespace tessera
