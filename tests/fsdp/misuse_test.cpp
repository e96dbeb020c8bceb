// What cannot work says so, and what to do.
#include <tessera/core/error.h>
#include <tessera/fsdp/check_optimizer.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/optim.h>
#include <torch/serialize.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <sstream>

#include "fsdp/chain.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// One sharded chain on each of two ranks.
void on_ranks(const std::function<void(const ShardedModel&, Chain&, const World&)>& body,
              const FsdpOptions& options = small_units()) {
  run_threads(2, [&](const World& world) {
    const auto model = filled_chain();
    body(fully_shard(model, world, options), *model, world);
  });
}

TEST(ShardedMisuse, ReadingReleasedParametersNamesThemAndTheRemedy) {
  on_ranks([](const ShardedModel&, Chain& model, const World&) {
    const auto text = message_of<c10::Error>([&] { (void)model.second->weight.data_ptr<double>(); });
    expect_parts(text, {"\"second\" (second.weight, second.bias)", "in shards", "sharded.gather()"});
    EXPECT_THROW(((void)model.second->bias.accessor<double, 1>()), c10::Error);
  });
}

TEST(ShardedMisuse, AnOptimizerOnTheModelsParametersIsRefusedByItsStep) {
  for (const bool before : {true, false}) {
    run_threads(2, [before](const World& world) {
      const auto model = filled_chain();
      std::optional<torch::optim::SGD> optimizer;
      if (before) optimizer.emplace(model->parameters(), 0.1);
      const ShardedModel sharded = fully_shard(model, world, small_units());
      if (!before) optimizer.emplace(model->parameters(), 0.1);
      const auto step = [&] { optimizer->step(); };
      expect_parts(message_of<c10::Error>(step), {"in shards", "sharded.parameters()", "after fully_shard()"});
      one_backward(*model, 0, world.rank(), 1);
      expect_parts(message_of<c10::Error>(step), {"in shards", "sharded.parameters()", "after fully_shard()"});
      optimizer->zero_grad();
      one_backward(*model, 0, world.rank(), 1);
      expect_parts(message_of<c10::Error>(step), {"\"first\"", "sharded.parameters()"});
    });
  }
}

TEST(ShardedMisuse, ReadingTheModelsGradientsSaysWhereTheyAre) {
  on_ranks([](const ShardedModel&, Chain& model, const World& world) {
    one_backward(model, 0, world.rank(), 1);
    const auto text = message_of<c10::Error>([&] { (void)model.third->weight.grad().norm(); });
    expect_parts(text, {"\"third\"", "tessera::clip_grad_norm"});
  });
}

TEST(ShardedMisuse, LbfgsIsRefusedBeforeItWrites) {
  for (const bool orig : {false, true}) {
    on_ranks(
        [](const ShardedModel& sharded, Chain& model, const World& world) {
          const Values before = sharded.full_state_dict();
          torch::optim::LBFGS optimizer(sharded.parameters());
          const auto closure = [&] {
            optimizer.zero_grad();
            auto loss = loss_of(model, 0, world.rank());
            loss.backward();
            return loss;
          };
          expect_parts(message_of<c10::Error>([&] { optimizer.step(closure); }),
                       {"one vector", "LBFGS", "AdamW", "kNoShard"});
          // Nothing has changed, and another optimizer goes on.
          torch::optim::SGD other(sharded.parameters(), 0.1);
          other.zero_grad();
          one_backward(model, 0, world.rank(), 1);
          expect_close(sharded.full_state_dict(), before, 0);
          other.step();
          EXPECT_FALSE(torch::equal(sharded.full_state_dict().at("second.weight"), before.at("second.weight")));
        },
        small_units().use_orig_params(orig));
  }
}

TEST(ShardedMisuse, LbfgsServesWhereNothingIsSharded) {
  on_ranks(
      [](const ShardedModel& sharded, Chain& model, const World& world) {
        torch::optim::LBFGS optimizer(sharded.parameters());
        const auto before = loss_of(model, 0, world.rank()).item<double>();
        optimizer.step([&] {
          optimizer.zero_grad();
          auto loss = loss_of(model, 0, 0);
          loss.backward();
          return loss;
        });
        EXPECT_LT(loss_of(model, 0, 0).item<double>(), before);
      },
      small_units().strategy(ShardingStrategy::kNoShard));
}

TEST(ShardedMisuse, CheckOptimizerNamesTheFault) {
  on_ranks([](const ShardedModel& sharded, Chain& model, const World&) {
    check_optimizer(torch::optim::SGD(sharded.parameters(), 0.1), sharded);
    expect_parts(message_of<ConfigError>([&] { check_optimizer(torch::optim::LBFGS(sharded.parameters()), sharded); }),
                 {"LBFGS", "rank"});
    expect_parts(message_of<ConfigError>([&] { check_optimizer(torch::optim::SGD(model.parameters(), 0.1), sharded); }),
                 {"built on the model's own parameters: first.weight", "sharded.parameters()", "rank"});
    const std::vector<at::Tensor> some{sharded.parameters().front()};
    expect_parts(message_of<ConfigError>([&] { check_optimizer(torch::optim::SGD(some, 0.1), sharded); }),
                 {"the optimizer does not step second", "sharded.parameters()"});
  });
}

TEST(ShardedMisuse, CheckOptimizerNamesTheUnitOfTheModelItself) {
  on_ranks(
      [](const ShardedModel& sharded, Chain&, const World&) {
        torch::optim::SGD other({at::ones({2}).requires_grad_(true)}, 0.1);
        expect_parts(message_of<ConfigError>([&] { check_optimizer(other, sharded); }),
                     {"the optimizer does not step the unit of the model itself"});
      },
      small_units().auto_wrap(wrap_none()));
}

TEST(ShardedMisuse, AStepAfterTheModelsZeroGradIsRefused) {
  for (const bool slices : {false, true}) {
    on_ranks(
        [](const ShardedModel& sharded, Chain& model, const World& world) {
          torch::optim::SGD optimizer(sharded.parameters(), 0.1);
          one_backward(model, 0, world.rank(), 1);
          const Values before = sharded.full_state_dict();
          model.zero_grad();
          expect_parts(message_of<c10::Error>([&] { optimizer.step(); }),
                       {"\"first\" were cleared by model->zero_grad()", "optimizer.zero_grad()", "rank"});
          expect_close(sharded.full_state_dict(), before, 0);
        },
        small_units().use_orig_params(slices));
  }
}

TEST(ShardedMisuse, AStepAfterOneGradientOfTheModelWasClearedIsRefused) {
  for (const bool slices : {false, true}) {
    for (const char* name : {"first.weight", "first.bias"}) {
      on_ranks(
          [name](const ShardedModel& sharded, Chain& model, const World& world) {
            torch::optim::SGD optimizer(sharded.parameters(), 0.1);
            one_backward(model, 0, world.rank(), 1);
            model.named_parameters()[name].mutable_grad() = at::Tensor();
            expect_parts(message_of<c10::Error>([&] { optimizer.step(); }), {"\"first\" were cleared"});
          },
          small_units().use_orig_params(slices));
    }
  }
}

TEST(ShardedMisuse, ANormOfZeroIsRefused) {
  on_ranks([](const ShardedModel& sharded, Chain&, const World&) {
    expect_parts(message_of<ConfigError>([&] { clip_grad_norm(sharded, 0); }), {"the norm to clip to must be above 0"});
  });
}

TEST(ShardedMisuse, ANullModelIsRefused) {
  const World world = fake_world(0, 1);
  expect_parts(message_of<ConfigError>([&] { fully_shard(std::shared_ptr<Chain>(), world); }),
               {"there is no model to shard"});
}

TEST(ShardedMisuse, LoadingAfterShardingIsNoticed) {
  std::stringstream file;
  torch::save(filled_chain(), file);
  const std::string bytes = file.str();
  std::mutex one_at_a_time;  // LibTorch's reader fills tables of its own
  on_ranks([&](const ShardedModel&, Chain& model, const World& world) {
    std::stringstream copy(bytes);
    torch::serialize::InputArchive archive;
    {
      const std::lock_guard lock(one_at_a_time);
      archive.load_from(copy);
    }
    model.load(archive);
    const auto text = message_of<c10::Error>([&] { one_backward(model, 0, world.rank(), 1); });
    expect_parts(text, {"first.weight", "other memory", "torch::load", "before it is sharded"});
    EXPECT_THROW(one_backward(model, 0, world.rank(), 1), c10::Error) << "and again";
  });
}

TEST(ShardedMisuse, ConvertingAfterShardingIsNoticed) {
  on_ranks([](const ShardedModel&, Chain& model, const World&) {
    model.to(at::kFloat);
    const auto input = wave({kBatch, 5}, 0, at::kFloat);
    expect_parts(message_of<c10::Error>([&] { model.forward(input); }), {"first.", "other memory", "Module::to"});
  });
}

TEST(ShardedMisuse, FreezingAfterShardingNeedsParametersOfTheirOwn) {
  on_ranks([](const ShardedModel&, Chain& model, const World& world) {
    one_backward(model, 0, world.rank(), 1);
    model.second->weight.set_requires_grad(false);
    const auto text = message_of<c10::Error>([&] { one_backward(model, 1, world.rank(), 1); });
    expect_parts(text, {"second.weight", "frozen", "use_orig_params(true)", "rank"});
  });
}

TEST(ShardedMisuse, UnfreezingAfterShardingIsRefused) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    model->second->weight.set_requires_grad(false);
    const ShardedModel sharded = fully_shard(model, world, small_units());
    one_backward(*model, 0, world.rank(), 1);
    model->second->weight.set_requires_grad(true);
    const auto text = message_of<c10::Error>([&] { one_backward(*model, 1, world.rank(), 1); });
    expect_parts(text, {"second.weight", "found it frozen", "Unfreeze it before"});
  });
}

TEST(ShardedMisuse, RanksMustAgreeOnOptionsAndShapes) {
  const auto text_with = [](const std::function<void(const World&)>& body) {
    std::string text;
    run_threads(2, [&](const World& world) {
      auto found = message_of<ConfigError>([&] { body(world); });
      if (world.rank() == 0) text = std::move(found);
    });
    return text;
  };
  expect_parts(text_with([](const World& world) {
                 fully_shard(filled_chain(), world, small_units().use_orig_params(world.rank() == 1));
               }),
               {"rank 1", "use_orig_params"});
  expect_parts(text_with([](const World& world) {
                 fully_shard(filled_chain(), world,
                             small_units().strategy(world.rank() == 1 ? ShardingStrategy::kNoShard
                                                                      : ShardingStrategy::kFullShard));
               }),
               {"rank 1", "strategy", "no_shard", "full_shard"});
  expect_parts(text_with([](const World& world) {
                 fully_shard(filled_chain(), world, small_units().auto_wrap(wrap_by_size(1 + world.rank())));
               }),
               {"rank 1", "wrap policy"});
  expect_parts(
      text_with([](const World& world) { fully_shard(torch::nn::Linear(4, 4 + world.rank()), world, small_units()); }),
      {"rank 1", "weight", "[5, 4]"});
}

TEST(ShardedMisuse, HybridShardingNeedsTwoAxes) {
  run_threads(2, [](const World& world) {
    const auto options = small_units().strategy(ShardingStrategy::kHybridShard);
    expect_parts(message_of<ConfigError>([&] { fully_shard(filled_chain(), world, options); }), {"two axes"});
  });
}

TEST(ShardedMisuse, AModelOutlivesItsHandleButDoesNotTrain) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    {
      const ShardedModel sharded = fully_shard(model, world, small_units());
    }
    expect_parts(message_of<c10::Error>([&] { loss_of(*model, 0, 0); }), {"ShardedModel", "keep it"});
  });
}

}  // namespace
}  // namespace tessera::testing
