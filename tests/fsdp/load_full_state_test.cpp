// A full state dict becomes the values of a sharded model.
#include <tessera/core/error.h>

#include <torch/nn/modules/batchnorm.h>
#include <gtest/gtest.h>

#include "fsdp/chain.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// With parameters that stay whole, a buffer, and a tensor in two places.
struct Rich : Chain {
  Rich() {
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    norm->to(at::kDouble);
    register_parameter("tied", second->weight);
  }
  torch::nn::BatchNorm1d norm = nullptr;
};

Values values_of(const torch::nn::Module& model, double phase) {
  Values values;
  for (const auto& entry : model.named_parameters()) values[entry.key()] = wave(entry.value().sizes(), ++phase);
  for (const auto& entry : model.named_buffers()) {
    values[entry.key()] = wave(entry.value().sizes(), ++phase).to(entry.value().scalar_type());
  }
  values["tied"] = values["second.weight"];
  return values;
}

TEST(LoadFullState, SetsEveryTensorWhoeverHasThem) {
  for (const bool shared : {false, true}) {
    for (const auto where : {FullStateOn::kEveryRank, FullStateOn::kRank0}) {
      run_threads(4, [&](const World& world) {
        const auto model = std::make_shared<Rich>();
        const auto options = small_units().min_num_params(9).shared_copy(shared);
        const auto comm = world.comm();
        const auto shards = comm.split_by([](int rank) { return rank / 2; }, "shards");
        const auto replicas = comm.split_by([](int rank) { return rank % 2; }, "replicas");
        const ShardedModel sharded = fully_shard(model, shards, replicas, options);
        model->forward(chain_input(0, 0)).sum().backward();
        const Values wanted = values_of(*model, 3);
        sharded.load_full_state_dict(where == FullStateOn::kEveryRank || world.rank() == 0 ? wanted : Values(), where);
        const Values found = sharded.full_state_dict();
        EXPECT_EQ(found.size(), wanted.size());
        expect_close(found, wanted, 0);
        // A forward sees them.
        Chain alone;
        const torch::NoGradGuard no_grad;
        for (auto& entry : alone.named_parameters()) entry.value().copy_(wanted.at(entry.key()));
        EXPECT_TRUE(at::allclose(model->forward(chain_input(1, 0)), alone.forward(chain_input(1, 0))));
      });
    }
  }
}

TEST(LoadFullState, ChangesMastersOfMixedPrecision) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units().param_dtype(at::kFloat));
    Values wanted = sharded.full_state_dict();
    for (auto& [name, value] : wanted) value = value + 1e-12;
    sharded.load_full_state_dict(wanted);
    expect_close(sharded.full_state_dict(), wanted, 0);
  });
}

TEST(LoadFullState, RefusesWhatDoesNotFitOnEveryRank) {
  const auto expect_refused = [](const std::function<void(Values&)>& change,
                                 std::initializer_list<std::string_view> parts) {
    run_threads(2, [&](const World& world) {
      const auto model = std::make_shared<Rich>();
      const ShardedModel sharded = fully_shard(model, world, small_units());
      const Values before = sharded.full_state_dict();
      Values values = values_of(*model, 3);
      if (world.rank() == 1) change(values);
      expect_parts(message_of<ConfigError>([&] { sharded.load_full_state_dict(values); }), parts);
      expect_close(sharded.full_state_dict(), before, 0);
    });
  };
  expect_refused([](Values& values) { values.erase("third.bias"); },
                 {"rank 1", "does not fit the model", "third.bias is missing", "Nothing was loaded"});
  expect_refused([](Values& values) { values["other"] = at::ones({1}); },
                 {"rank 1", "  other", " is not of this model"});
  expect_refused([](Values& values) { values["third.bias"] = at::ones({3}); },
                 {"third.bias", " has the shape ", "[2]", "[3]"});
  expect_refused([](Values& values) { values["tied"] = at::zeros({8, 8}, at::kDouble); },
                 {"second name", "other values"});
}

TEST(LoadFullState, WaitsForGatherToBeGone) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    const Values values = sharded.full_state_dict();
    const auto whole = sharded.gather();
    expect_parts(message_of<ConfigError>([&] { sharded.load_full_state_dict(values); }), {"held whole", "gather()"});
  });
}

}  // namespace
}  // namespace tessera::testing
