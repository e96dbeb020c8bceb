// Data parallelism of a model that recomputes its activations, one checkpoint inside another.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/data_parallel.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/recompute/recompute.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <exception>
#include <mutex>
#include <set>

#include "parity/reproducible.h"
#include "parity/training.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

/// Every way of using data parallelism: options, wrapper, accumulation under no_sync, reproducible mode.
void check(ParityCase parity) {
  parity.model = "gpt";
  const State expected = train_alone(parity);
  parity.model = "recomputed gpt";
  require_equal(train_alone(parity), expected, parity, "one process");
  for (const auto& variant : parity_variants()) {
    try {
      run_threads(parity.num_ranks, [&](const World& world) {
        require_equal(train_distributed(parity, variant, world.comm()), expected, parity, variant);
      });
    } catch (const std::exception& error) {
      ADD_FAILURE() << variant << ": " << error.what();
    }
  }
}

TEST(RecomputeParity, OnTwoRanks) { check({}); }
TEST(RecomputeParity, WithAccumulation) { check({.optimizer = "adamw", .micro_batches = 2}); }

TEST(RecomputeParity, HasTheBitsOfReproducibleModeWithoutIt) {
  std::set<std::uint64_t> hashes;
  for (const int num_ranks : {1, 4}) {
    for (const std::string model : {"gpt", "recomputed gpt"}) {
      std::mutex mutex;
      run_threads(num_ranks, [&](const World& world) {
        const auto hash = train_reproducibly(world.comm(), 10, {.model = model});
        const std::lock_guard lock(mutex);
        hashes.insert(hash);
      });
    }
  }
  EXPECT_EQ(hashes.size(), 1U);
}

/// Two layers in checkpoints, of which the second one can be left out.
struct Pair : torch::nn::Cloneable<Pair> {
  Pair() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& input, bool skip_second = false) const {
    const auto run = [](torch::nn::Linear layer) {
      return [layer](const at::Tensor& x) mutable { return layer(x).tanh(); };
    };
    const at::Tensor x = recompute(run(first), input);
    return skip_second ? x : recompute(run(second), x);
  }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

TEST(RecomputeWithDdp, StillNamesUnusedParameters) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Pair>();
    const auto ddp = distribute(model, world);
    const auto text =
        message_of<ConfigError>([&] { model->forward(at::ones({2, 4}), /*skip_second=*/true).sum().backward(); });
    expect_parts(text, {"2 of the 4 parameters", "second.weight, second.bias"});
  });
}

TEST(RecomputeWithDdp, AveragesWhatSomeRanksUse) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Pair>();
    const auto ddp = distribute(model, world, DdpOptions().find_unused_parameters(true));
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model->forward(at::ones({2, 4}), world.rank() == 1).sum().backward();
      const at::Tensor mine = model->second->weight.grad().clone();
      world.comm().broadcast(mine, 0);
      require_equal(mine, model->second->weight.grad(), "averaged");
    }
    require_equal(ddp.statistics().num_synchronised, 3, "three passes, none for a second run");
  });
}

TEST(RecomputeWithDdp, IsServedByTheReplicasOfOneProcess) {
  const auto gradients = [](bool replicated) {
    const auto model = std::make_shared<Pair>();
    fill_by_formula(*model);
    const at::Tensor input = formula({6, 4}, 9, at::kFloat);
    if (replicated) {
      const DataParallel<Pair> replicas(model, DataParallelOptions().num_replicas(3));
      replicas.forward(input).sum().backward();
    } else {
      model->forward(input).sum().backward();
    }
    return model->first->weight.grad().clone();
  };
  EXPECT_TRUE(at::allclose(gradients(true), gradients(false), 1e-5, 1e-6));
}

}  // namespace
}  // namespace tessera::testing
