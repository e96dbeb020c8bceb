// What a sharded model says of itself: states, shards, and how much memory it holds.
#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/global_slice.h>

#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "fsdp/chain.h"
#include "support/error_message.h"
#include "support/slice_elements.h"

namespace tessera::testing {
namespace {

TEST(ShardedState, IsWholeWithinAScope) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kZero1}) {
    run_threads(3, [strategy](const World& world) {
      const auto alone = filled_chain();
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().strategy(strategy));
      {
        const auto whole = sharded.gather();
        const auto again = sharded.gather();
        const double* values = model->second->weight.const_data_ptr<double>();
        EXPECT_EQ(values[9], alone->second->weight.const_data_ptr<double>()[9]);
      }
      if (strategy == ShardingStrategy::kFullShard) {
        EXPECT_EQ(sharded.statistics().gathered_bytes, 0U);
        EXPECT_THROW((void)model->second->weight.const_data_ptr<double>(), c10::Error);
      }
    });
  }
}

TEST(ShardedState, MayBeTrainedAfterAScope) {
  const auto pass = [](Chain& model, int step, int part, double share) { one_backward(model, step, part, share); };
  const auto read = [](Chain& model, const ShardedModel* sharded) {
    if (!sharded) return;
    const auto whole = sharded->gather();
    EXPECT_TRUE(std::isfinite(model.first->weight.const_data_ptr<double>()[0]));
  };
  expect_same_as_alone<Chain>({.pass = pass, .num_ranks = 3, .before_step = read});
}

TEST(ShardedState, IsCompleteAndACopy) {
  run_threads(3, [](const World& world) {
    const auto alone = filled_chain();
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units().min_num_params(9));
    Values state = sharded.full_state_dict();
    EXPECT_EQ(state.size(), 6U);
    for (const auto& entry : alone->named_parameters()) {
      EXPECT_TRUE(torch::equal(state.at(entry.key()), entry.value())) << entry.key();
      state.at(entry.key()).zero_();
    }
    for (const auto& [name, value] : sharded.full_state_dict()) EXPECT_GT(value.abs().sum().item<double>(), 0) << name;
    EXPECT_EQ(sharded.statistics().gathered_bytes, 0U);
  });
}

TEST(ShardedState, ConsistsOfSlicesThatTheShardsAnnounce) {
  for (const bool orig : {false, true}) {
    run_threads(3, [orig](const World& world) {
      const auto alone = filled_chain();
      const ShardedModel sharded = fully_shard(filled_chain(), world, small_units().use_orig_params(orig));
      const auto slices = sharded.sharded_state_dict();
      std::map<std::string, std::int64_t> covered;
      for (const auto& shard : sharded.shards()) {
        EXPECT_EQ(shard.slice.as_extent()->start, covered[shard.name]) << "in order, without gaps";
        covered[shard.name] += shard.slice.num_elements();
        if (shard.rank != world.rank()) continue;
        const StateSlice& slice = slices.at(shard.name);
        const at::Tensor whole = alone->named_parameters()[shard.name].detach();
        EXPECT_EQ(slice.name, shard.name);
        EXPECT_EQ(slice.slice, shard.slice);
        EXPECT_EQ(slice.slice.shape(), whole.sizes().vec());
        EXPECT_TRUE(torch::equal(slice.values, elements_of(whole, shard.slice)));
      }
      for (const auto& entry : alone->named_parameters()) EXPECT_EQ(covered[entry.key()], entry.value().numel());
    });
  }
}

TEST(ShardedState, SlicesShareMemoryWithWhatIsTrained) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    for (auto& [name, slice] : sharded.sharded_state_dict()) slice.values.fill_(0.25);
    for (const auto& [name, value] : sharded.full_state_dict()) EXPECT_TRUE((value == 0.25).all().item<bool>()) << name;
    const torch::NoGradGuard no_grad;
    const auto output = model->forward(chain_input(0, 0));
    auto expected = filled_chain();
    for (auto& parameter : expected->parameters()) parameter.fill_(0.25);
    EXPECT_TRUE(torch::equal(output, expected->forward(chain_input(0, 0)))) << "operators find the new values";
  });
}

TEST(ShardedState, RefusesSlicesThatAreOutOfDate) {
  run_threads(2, [](const World& world) {
    const ShardedModel sharded = fully_shard(filled_chain(), world, small_units());
    const auto whole = sharded.gather(GatherOptions().write_back(true));
    expect_parts(message_of<ConfigError>([&] { sharded.sharded_state_dict(); }),
                 {"while gather() holds it to be written to", "rank"});
  });
}

TEST(ShardedState, OfAModelThatWasCutBeforeIsNotTakenForAllOfIt) {
  run_threads(2, [](const World& world) {
    for (const std::int64_t rows : {4, 512}) {  // one that stays whole, and one that is sharded
      const auto model = std::make_shared<torch::nn::Module>();
      const Slice half = Slice::whole({2 * rows, 3}).narrow(0, {rows, rows});
      set_global_slice(model->register_parameter("w", at::ones({rows, 3})), half);
      const ShardedModel sharded = fully_shard(model, world);
      expect_parts(message_of<ConfigError>([&] { sharded.full_state_dict(); }),
                   {"full_state_dict() knows only the ranks", "of w those have", half.text(),
                    "it was cut before fully_shard()"});
      expect_parts(message_of<ConfigError>([&] { clip_grad_norm(sharded, 1.0); }),
                   {"ParallelModel::axes() knows only the ranks", half.text()});
      const auto slices = sharded.sharded_state_dict();
      EXPECT_EQ(slices.at("w").slice.shape(), (std::vector<std::int64_t>{2 * rows, 3}));
      const std::int64_t first = rows == 4 ? 0 : rows * 3 / 2 * world.rank();
      EXPECT_EQ(slices.at("w").slice.as_extent()->start, rows * 3 + first);
    }
  });
}

TEST(ShardedState, OfABufferThatWasCutIsNotTakenForAllOfIt) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const at::Tensor buffer = model->register_buffer("cut", at::zeros({4}));
    set_global_slice(buffer, Slice::whole({8}).narrow(0, {4, 4}));
    const ShardedModel sharded = fully_shard(model, world, small_units());
    expect_parts(message_of<ConfigError>([&] { sharded.full_state_dict(); }), {"of cut those have [4:8] of [8]"});
  });
}

TEST(ShardedState, GivesWhatStaysWholeAsItLies) {
  struct Turned : torch::nn::Module {
    Turned() {
      register_parameter("columns", wave({3, 5}, 1).t());
      register_parameter("gaps", wave({4, 8}, 2).narrow(1, 2, 3));
    }
  };
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Turned>();
    const ShardedModel turned = fully_shard(model, world);  // too small to be cut
    for (const auto& [name, slice] : turned.sharded_state_dict()) {
      EXPECT_TRUE(slice.values.is_alias_of(model->named_parameters()[name])) << name;
      EXPECT_TRUE(torch::equal(slice.values, model->named_parameters()[name])) << name;
    }
  });
}

TEST(ShardedState, TellsWhatEachTrainedTensorHoldsOfWhichParameter) {
  for (const bool orig : {false, true}) {
    run_threads(3, [orig](const World& world) {
      const auto alone = filled_chain();
      const auto options = small_units().auto_wrap(wrap_none()).min_num_params(4).use_orig_params(orig);
      const ShardedModel sharded = fully_shard(filled_chain(), world, options);
      std::set<std::string> names;
      for (const TrainedTensor& trained : sharded.trained()) {
        for (const ParameterPart& part : trained.parts) {
          EXPECT_TRUE(names.insert(part.name).second) << part.name << " stands once";
          const at::Tensor whole = alone->named_parameters()[part.name].detach();
          EXPECT_EQ(part.slice.shape(), whole.sizes().vec());
          const at::Tensor held = trained.tensor.detach().view({-1}).narrow(0, part.held.start, part.held.size);
          EXPECT_TRUE(torch::equal(held, elements_of(whole, part.slice))) << part.name;
        }
      }
      EXPECT_EQ(names.size(), 6U) << "also those of which this rank holds nothing";
    });
  }
}

TEST(ShardedState, MayBeWrittenToByPointer) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1}) {
    for (const bool shared : {true, false}) {
      run_threads(2, [&](const World& world) {
        const auto model = filled_chain();
        const auto options = small_units().strategy(strategy).shared_copy(shared);
        const ShardedModel sharded = fully_shard(model, world, options);
        const torch::NoGradGuard no_grad;
        model->forward(chain_input(0, 0));  // what is whole now must not stay
        {
          const auto whole = sharded.gather();
          EXPECT_THROW(sharded.before_write(), ConfigError);
        }
        sharded.before_write();
        for (auto& [name, slice] : sharded.sharded_state_dict()) {
          std::fill_n(slice.values.mutable_data_ptr<double>(), slice.values.numel(), 0.25);
        }
        auto expected = filled_chain();
        for (auto& parameter : expected->parameters()) parameter.fill_(0.25);
        EXPECT_TRUE(torch::equal(model->forward(chain_input(0, 0)), expected->forward(chain_input(0, 0))));
      });
    }
  }
}

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Eight equal layers, with buffers in between.
struct Tower : torch::nn::Module {
  Tower() {
    for (int i = 0; i < 8; ++i)
      layers.emplace_back(register_module("l" + std::to_string(i), torch::nn::Linear(16, 16)));
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

FsdpStatistics statistics_after_training(FsdpOptions options, const World& world, bool hybrid = false) {
  options.shared_copy(false);  // where all ranks read one copy, nothing is gathered
  auto model = std::make_shared<Tower>();
  fill(*model);
  const auto shards = world.comm().split_by([](int rank) { return rank / 2; }, "shards");
  const auto replicas = world.comm().split_by([](int rank) { return rank % 2; }, "replicas");
  const ShardedModel sharded =
      hybrid ? fully_shard(model, shards, replicas, options) : fully_shard(model, world, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.01);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    model->forward(wave({4, 16}, step + world.rank())).square().mean().backward();
    EXPECT_EQ(sharded.statistics().gathered_bytes, 0U) << "backward is over";
    optimizer.step();
    const torch::NoGradGuard no_grad;
    model->forward(wave({4, 16}, step));
  }
  return sharded.statistics();
}

struct MemoryCase {
  std::string name;
  FsdpOptions options;
  std::uint64_t units_at_once;
  bool hybrid = false;
};

std::ostream& operator<<(std::ostream& stream, const MemoryCase& one) { return stream << one.name; }

std::vector<MemoryCase> memory_cases() {
  return {{"Limited", small_units(), 2},
          {"Unlimited", small_units().limit_all_gathers(false), 5},
          {"Post", small_units().backward_prefetch(BackwardPrefetch::kPost), 2},
          {"NoPrefetch", small_units().backward_prefetch(BackwardPrefetch::kNone).forward_prefetch(false), 1},
          {"OneUnit", small_units().auto_wrap(wrap_none()), 1},
          {"Hybrid", small_units(), 2, true},
          {"HybridWithoutPrefetch", small_units().backward_prefetch(BackwardPrefetch::kNone).forward_prefetch(false), 1,
           true}};
}

class GatheredBytes : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(GatheredBytes, AreThoseOfTheUnitInUseAndOfThoseAhead) {
  const MemoryCase& one = GetParam();
  run_threads(4, [&](const World& world) {
    const auto statistics = statistics_after_training(one.options, world, one.hybrid);
    EXPECT_LE(statistics.peak_gathered_bytes, one.units_at_once * statistics.largest_unit_bytes);
    EXPECT_GT(statistics.peak_gathered_bytes, (one.units_at_once - 1) * statistics.largest_unit_bytes)
        << "what may be ahead is";
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, GatheredBytes, ::testing::ValuesIn(memory_cases()),
                         [](const auto& one) { return one.param.name; });

TEST(BytesWithShardGradOp, AreOfTheWholeModelBetweenForwardAndBackward) {
  run_threads(2, [](const World& world) {
    const auto statistics = statistics_after_training(small_units().strategy(ShardingStrategy::kShardGradOp), world);
    EXPECT_EQ(statistics.peak_gathered_bytes, statistics.full_bytes);
  });
}

TEST(ShardBytes, AreTheRanksShare) {
  run_threads(4, [](const World& world) {
    const auto statistics = statistics_after_training(small_units(), world);
    // A share ends on a whole vector of 64 bytes: so much more in each of the eight units.
    EXPECT_LE(statistics.shard_bytes, statistics.full_bytes / 4 + 8 * 64);
    EXPECT_NEAR(statistics.local_sharding_ratio(), 0.25, 0.06);
  });
}

}  // namespace
}  // namespace tessera::testing
