// Models that cannot be sharded, each named with its fault and a remedy; and near ones that can.
#include <tessera/core/error.h>

#include <torch/nn/modules/embedding.h>
#include <gtest/gtest.h>

#include "fsdp/chain.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// Refused on every rank, with these parts in the message.
void expect_refused(const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                    std::initializer_list<std::string_view> parts) {
  run_threads(2, [&](const World& world) {
    const auto model = make();
    expect_parts(message_of<ConfigError>([&] { fully_shard(model, world, small_units()); }), parts);
  });
}

struct WithView : Chain {
  WithView() { transposed = second->weight.t(); }
  at::Tensor transposed;
};

TEST(RefusedModels, ViewsThatWereMadeBefore) {
  expect_refused([] { return std::make_shared<WithView>(); },
                 {"second.weight", "1 other tensor", "inside forward", "rank"});
  expect_refused(
      [] {
        auto model = filled_chain();
        model->register_buffer("copy", model->third->bias.detach());
        return model;
      },
      {"third.bias", "1 other tensor"});
}

TEST(RefusedModels, WithoutValues) {
  expect_refused(
      [] {
        auto model = filled_chain();
        model->second->register_parameter("far", at::zeros({2}, at::kMeta));
        return model;
      },
      {"second.far is on meta", "no values that ranks could share"});
  expect_refused(
      [] {
        auto model = filled_chain();
        model->register_buffer("far", at::zeros({2}, at::kMeta));
        return model;
      },
      {"far is on meta"});
}

TEST(RefusedModels, AreNamedAlikeWhereverTheirMemoryLies) {
  // All parameters are in use: the one that is named must not depend on addresses.
  for (int round = 0; round < 5; ++round) {
    expect_refused(
        [] {
          std::vector<at::Tensor> between;  // so that memory is not handed out in the order of the model
          for (std::int64_t i = 0; i < 64; ++i) between.push_back(at::zeros({1 + i % 7}));
          auto model = filled_chain();
          for (auto& parameter : model->parameters()) {
            parameter.set_data(parameter.data().clone());
            model->register_buffer("copy" + std::to_string(model->buffers().size()), parameter.detach());
          }
          return model;
        },
        {"first.weight", "1 other tensor", "rank"});
  }
}

TEST(RefusedModels, InOneGroupOfShardsAreRefusedByAll) {
  run_threads(4, [](const World& world) {
    const auto shards = world.comm().split_by([](int rank) { return rank / 2; }, "shards");
    const auto replicas = world.comm().split_by([](int rank) { return rank % 2; }, "replicas");
    const auto model = filled_chain();
    if (world.rank() == 3) model->register_parameter("more", at::ones({8}));
    const std::string message = message_of<ConfigError>([&] { fully_shard(model, shards, replicas, small_units()); });
    expect_parts(message, {"more"});
  });
}

TEST(RefusedModels, GraphsThatLive) {
  run_threads(2, [](const World& world) {
    const auto model = filled_chain();
    at::Tensor loss = loss_of(*model, 0, 0);
    expect_parts(message_of<ConfigError>([&] { fully_shard(model, world, small_units()); }), {"weight", "loss"});
    loss = at::Tensor();
    fully_shard(model, world, small_units());
  });
}

TEST(RefusedModels, ParametersThatShareMemory) {
  struct Aliased : torch::nn::Module {
    Aliased() {
      u = register_parameter("u", torch::ones({4, 4}));
      v = register_parameter("v", u.detach().t().set_requires_grad(true));
    }
    at::Tensor u;
    at::Tensor v;
  };
  expect_refused([] { return std::make_shared<Aliased>(); }, {"u and v", "share memory", "same tensor", "rank"});
}

TEST(RefusedModels, NotPiecesOfOneMemoryThatDoNotOverlap) {
  struct Pieces : torch::nn::Module {
    Pieces() {
      const at::Tensor both = wave({2, 6}, 1);
      u = register_parameter("u", both[0].detach());
      v = register_parameter("v", both[1].detach());
    }
    at::Tensor forward() const { return (u * v).sum(); }
    at::Tensor u;
    at::Tensor v;
  };
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Pieces>();
    const double expected = model->forward().item<double>();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    EXPECT_EQ(model->forward().item<double>(), expected);
  });
}

TEST(RefusedModels, NotAParameterThatIsAViewOfWhatNobodyElseHolds) {
  struct Turned : torch::nn::Module {
    Turned() { w = register_parameter("w", wave({3, 5}, 1).t()); }
    at::Tensor w;
  };
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Turned>();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    EXPECT_TRUE(torch::equal(sharded.full_state_dict().at("w"), wave({3, 5}, 1).t()));
  });
}

TEST(RefusedModels, ComplexParameters) {
  expect_refused(
      [] {
        auto model = filled_chain();
        model->register_parameter("phase", torch::ones({4}, torch::kComplexDouble));
        return model;
      },
      {"phase", "complex", "distribute()", "rank"});
}

TEST(RefusedModels, SparseGradients) {
  expect_refused(
      [] {
        auto model = filled_chain();
        model->register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
        return model;
      },
      {"\"table\"", "sparse(false)", "rank"});
}

TEST(RefusedModels, EmbeddingsThatRenormaliseThemselves) {
  expect_refused(
      [] {
        auto model = filled_chain();
        model->register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).max_norm(1.0)));
        return model;
      },
      {"\"table\"", "max_norm", "drift apart", "rank"});
}

/// What a function makes sparse cannot be known before; it is added up as any other gradient.
TEST(SparseGradients, OfAFunctionAreAveraged) {
  struct Table : torch::nn::Module {
    Table() : rows(register_parameter("rows", wave({10, 4}, 1))) {}
    at::Tensor forward(const at::Tensor& which) const {
      return at::embedding(rows, which, -1, false, /*sparse=*/true).square().sum();
    }
    at::Tensor rows;
  };
  const auto pass = [](Table& model, int step, int part, double share) {
    (model.forward(torch::tensor({step + part, 3})) * share).backward();
  };
  const auto plain = [](const NamedParameters& named) -> OptimizerPointer {
    return std::make_unique<torch::optim::SGD>(tensors_of(named), 0.1);
  };
  expect_same_as_alone<Table>({.pass = pass, .make_optimizer = plain});
}

}  // namespace
}  // namespace tessera::testing
