// What is written to a sharded model is written as in one process, or refused.
#include <tessera/core/error.h>

#include <torch/nn/init.h>
#include <torch/optim.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "fsdp/chain.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Write = std::function<void(Chain&)>;

/// Ways that LibTorch offers to change a weight.
std::vector<std::pair<std::string, Write>> ways_to_write() {
  const auto quiet = [](const Write& write) {
    return [write](Chain& model) {
      const torch::NoGradGuard no_grad;
      write(model);
    };
  };
  return {
      {"data", [](Chain& model) { model.second->weight.data().mul_(1.5); }},
      {"every parameter",
       [](Chain& model) {
         for (auto& parameter : model.parameters()) parameter.data().add_(0.01);
       }},
      {"the parameter itself", quiet([](Chain& model) { model.second->weight.mul_(0.5); })},
      {"copied", quiet([](Chain& model) { model.third->bias.copy_(wave({2}, 5)); })},
      {"detached", [](Chain& model) { model.first->weight.detach().clamp_(-0.2, 0.2); }},
      {"a view", quiet([](Chain& model) { model.first->weight.t().select(0, 1).fill_(0.25); })},
      {"an index",
       quiet([](Chain& model) { model.second->weight.index_put_({0}, at::full({8}, 0.125, at::kDouble)); })},
      {"an output", quiet([](Chain& model) { at::neg_out(model.second->bias, wave({8}, 2)); })},
      {"a list", quiet([](Chain& model) {
         at::_foreach_mul_({model.first->weight, model.third->weight, model.second->bias}, 1.25);
       })},
      {"renormalised", quiet([](Chain& model) { model.second->weight.renorm_(2, 0, 0.5); })},
      {"an initialisation", quiet([](Chain& model) { torch::nn::init::constant_(model.third->weight, 0.2); })},
  };
}

std::vector<std::pair<std::string, FsdpOptions>> ways_to_shard() {
  const auto with = [] { return small_units(); };
  return {
      {"one copy", with()},
      {"copies", with().shared_copy(false)},
      {"one unit", with().auto_wrap(wrap_none())},
      {"slices", with().use_orig_params(true)},
      {"shard_grad_op", with().strategy(ShardingStrategy::kShardGradOp)},
      {"zero1", with().strategy(ShardingStrategy::kZero1).shared_copy(false)},
      {"no_shard", with().strategy(ShardingStrategy::kNoShard)},
  };
}

TEST(WritesToAShardedModel, AreThoseOfOneProcess) {
  for (const auto& [way, write] : ways_to_write()) {
    for (const auto& [how, options] : ways_to_shard()) {
      SCOPED_TRACE(way + ", " + how);
      Training<Chain> training{.pass = one_backward<Chain>, .options = options};
      training.num_steps = 3;
      training.before_step = [write](Chain& model, const ShardedModel*) { write(model); };
      expect_same_as_alone(training);
    }
  }
}

TEST(WritesToAShardedModel, BetweenForwardAndBackwardAreSeenByBackward) {
  for (const auto& [how, options] : ways_to_shard()) {
    SCOPED_TRACE(how);
    Training<Chain> training{.pass =
                                 [](Chain& model, int step, int part, double share) {
                                   // On one process this runs once for each part.
                                   model.second->weight.data().copy_(wave({8, 8}, step));
                                   const at::Tensor loss = loss_of(model, step, part) * share;
                                   model.second->weight.data().copy_(wave({8, 8}, step + 0.5));
                                   loss.backward();
                                 },
                             .options = options};
    training.num_steps = 3;
    expect_same_as_alone(training);
  }
}

TEST(WritesToAShardedModel, AreReadAtOnce) {
  for (const auto& [how, options] : ways_to_shard()) {
    SCOPED_TRACE(how);
    run_threads(2, [&, &shard = options](const World& world) {
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, shard);
      model->second->weight.data().fill_(0.25);
      EXPECT_TRUE(model->second->weight.eq(0.25).all().item<bool>());
      EXPECT_TRUE(sharded.full_state_dict().at("second.weight").eq(0.25).all().item<bool>());
      const auto whole = sharded.gather();
      model->second->weight.data().mul_(2);
      EXPECT_EQ(model->second->weight.data_ptr<double>()[5], 0.5);
      EXPECT_TRUE(sharded.full_state_dict().at("second.weight").eq(0.5).all().item<bool>());
    });
  }
}

TEST(WritesToAShardedModel, ThatIsTrainedInMoreBitsAreRefused) {
  for (const bool shared : {false, true}) {
    run_threads(2, [shared](const World& world) {
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().param_dtype(at::kFloat).shared_copy(shared));
      const Values before = sharded.full_state_dict();
      for (int i = 0; i < 2; ++i) {
        expect_parts(message_of<c10::Error>([&] { model->second->weight.data().mul_(2); }),
                     {"\"second\"", "Float", "Double", "load_full_state_dict", "rank"});
      }
      EXPECT_THROW(std::ignore = sharded.gather(GatherOptions().write_back(true)), ConfigError);
      // The model is as it was.
      expect_close(sharded.full_state_dict(), before, 0);
      model->forward(chain_input(0, 0).to(at::kFloat)).sum().backward();
    });
  }
}

TEST(WritesToAShardedModel, OfAnotherThreadAreSaidByTheOneThatTrains) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    {
      const auto whole = sharded.gather();
      std::thread([&] { model->second->weight.data().mul_(2); }).join();
      world.comm().barrier();
    }
    expect_parts(message_of<c10::Error>([&] { loss_of(*model, 0, world.rank()); }),
                 {"a parameter was written to by another thread", "rank"});
    loss_of(*model, 0, world.rank()).backward();
  });
}

TEST(WritesToShards, OfAnotherThreadAreRefused) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    one_backward(*model, 0, world.rank(), 1);
    const Values before = sharded.full_state_dict();
    std::thread([&] {
      expect_parts(message_of<c10::Error>([&] { optimizer.step(); }),
                   {"the shards of this model are to be written to by another thread", "optimizer", "rank"});
    }).join();
    expect_close(sharded.full_state_dict(), before, 0);
    optimizer.step();
  });
}

// ---- gather() -------------------------------------------------------------------------------------------------------

TEST(Gather, RefusesAnOptimizerThatStepsMeanwhile) {
  for (const bool shared : {false, true}) {
    run_threads(2, [shared](const World& world) {
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().shared_copy(shared));
      torch::optim::Adam optimizer(sharded.parameters(), 0.5);
      const Values before = sharded.full_state_dict();
      {
        const auto whole = sharded.gather();
        one_backward(*model, 0, world.rank(), 1);
        for (int i = 0; i < 2; ++i) {
          expect_parts(message_of<c10::Error>([&] { optimizer.step(); }), {"held whole", "gather()", "rank"});
        }
        expect_close(sharded.full_state_dict(), before, 0);
      }
      optimizer.step();
      EXPECT_FALSE(torch::equal(sharded.full_state_dict().at("second.weight"), before.at("second.weight")));
    });
  }
}

TEST(Gather, WithoutWriteBackFindsOutWritesByPointer) {
  for (const bool shared : {false, true}) {
    run_threads(2, [shared](const World& world) {
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().shared_copy(shared));
      world.comm().barrier();
      {
        const auto whole = sharded.gather();
        world.comm().barrier();
        if (world.rank() == 0 || !shared) {
          for (int i = 0; i < 64; ++i) model->second->weight.data_ptr<double>()[i] += 1;
        }
        world.comm().barrier();
      }
      const auto use = [&] { loss_of(*model, 0, world.rank()); };
      expect_parts(message_of<c10::Error>(use), {"\"second\"", "by a pointer", "write_back(true)", "rank"});
      use();  // said once
    });
  }
}

TEST(Gather, WithWriteBackKeepsWhatIsWritten) {
  for (const auto& [how, options] : ways_to_shard()) {
    SCOPED_TRACE(how);
    Training<Chain> training{.pass = one_backward<Chain>, .options = options};
    training.num_steps = 3;
    training.before_step = [](Chain& model, const ShardedModel* sharded) {
      std::optional<Whole> whole;
      if (sharded) whole.emplace(*sharded, GatherOptions().write_back(true));
      double* const weight = model.second->weight.data_ptr<double>();
      for (int i = 0; i < 64; ++i) weight[i] *= 1.5;
      model.third->weight.data().add_(0.25);
    };
    expect_same_as_alone(training);
  }
}

TEST(Gather, OfAModuleLeavesTheOthersInShards) {
  for (const bool writes : {false, true}) {
    run_threads(2, [writes](const World& world) {
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().shared_copy(false));
      {
        const auto whole = sharded.gather(GatherOptions().module(model->second.ptr()).write_back(writes));
        EXPECT_EQ(sharded.statistics().gathered_bytes, (64 + 8) * sizeof(double));
        if (writes) model->second->weight.data_ptr<double>()[63] = 7;
        EXPECT_THROW((void)model->third->weight.data_ptr<double>(), c10::Error);
        loss_of(*model, 0, world.rank()).backward();
        EXPECT_NO_THROW((void)model->second->weight.data_ptr<double>());
      }
      EXPECT_EQ(sharded.statistics().gathered_bytes, 0U);
      const double last = sharded.full_state_dict().at("second.weight")[7][7].item<double>();
      EXPECT_EQ(last == 7, writes);
    });
  }
}

// ---- other threads --------------------------------------------------------------------------------------------------

TEST(OtherThreads, EvaluateWithWholeWeightsOrAreRefused) {
  for (const bool shared : {false, true}) {
    run_threads(2, [shared](const World& world) {
      const auto model = filled_chain();
      const auto alone = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().shared_copy(shared));
      const torch::NoGradGuard no_grad;
      const at::Tensor input = chain_input(0, 0);
      const at::Tensor expected = alone->forward(input);
      std::atomic<bool> stops = false;
      std::atomic<int> num_wrong = 0;
      std::thread other([&] {
        const torch::NoGradGuard also_here;
        while (!stops) {
          try {
            if (!at::allclose(model->forward(input), expected)) ++num_wrong;
          } catch (const c10::Error&) {
            continue;  // in shards
          }
        }
      });
      for (int i = 0; i < 300; ++i) {
        EXPECT_TRUE(at::allclose(model->forward(input), expected));
        const auto whole = sharded.gather();
      }
      stops = true;
      other.join();
      EXPECT_EQ(num_wrong, 0);
    });
  }
}

TEST(OtherThreads, FindWhatGatherHolds) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    const auto whole = sharded.gather();
    std::thread([&] {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(model->forward(chain_input(0, 0)), filled_chain()->forward(chain_input(0, 0))));
    }).join();
  });
}

TEST(OtherThreads, DoNotTrain) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    const auto whole = sharded.gather();
    std::thread([&] {
      expect_parts(message_of<ConfigError>([&] { one_backward(*model, 0, world.rank(), 1); }),
                   {"a backward pass of a sharded model runs on another thread", "NoGradGuard", "rank"});
    }).join();
  });
}

}  // namespace
}  // namespace tessera::testing
