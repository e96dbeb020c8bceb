#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/sync_batch_norm.h>

#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "data_parallel/small_models.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/sum_hook.h"

namespace tessera {
namespace {

using testing::Chain;
using testing::expect_parts;
using testing::message_of;
using testing::require;

using Batches = std::vector<int>;
const Batches kBatches{3, 5, 8};

at::Tensor input_of(int rank, int step) { return at::cos(at::arange(3 * 4) * 0.3 + rank + 7 * step).view({3, 4}); }

/// The stated meaning: in every step the gradients of the ranks that have a batch are added up, and divided by the
/// number of ranks at the start, or of those.
Chain expected(const Batches& batches, bool divide_by_initial_size) {
  const int num_ranks = static_cast<int>(batches.size());
  const int num_steps = *std::max_element(batches.begin(), batches.end());
  Chain model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    const auto training = std::count_if(batches.begin(), batches.end(), [&](int count) { return count > step; });
    const double divisor = divide_by_initial_size ? num_ranks : static_cast<double>(training);
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (batches.at(rank) > step) (model.forward(input_of(rank, step)).square().sum() / divisor).backward();
    }
    optimizer.step();
  }
  return model;
}

void train(const World& world, const DdpOptions& options, const Batches& batches, bool divide_by_initial_size) {
  const auto model = std::make_shared<Chain>();
  const auto ddp = distribute(model, world, options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto join = ddp.join(divide_by_initial_size);
  for (int step = 0; step < batches.at(world.rank()); ++step) {
    optimizer.zero_grad();
    model->forward(input_of(world.rank(), step)).square().sum().backward();
    optimizer.step();
  }
  join.finish();
  const Chain alone = expected(batches, divide_by_initial_size);
  for (const auto& entry : alone.named_parameters()) {
    require(at::allclose(model->named_parameters()[entry.key()], entry.value(), 1e-5, 1e-6),
            entry.key() + " is not what the semantics say on rank " + std::to_string(world.rank()));
  }
}

TEST(Join, EndsOnRanksWith3And5And8BatchesAsStated) {
  for (const bool divide_by_initial_size : {true, false}) {
    run_threads(3, [&](const World& world) { train(world, {}, kBatches, divide_by_initial_size); });
  }
}

TEST(Join, ServesEveryWayOfReducing) {
  for (const auto& options : {DdpOptions().bucket_bytes(48).first_bucket_bytes(32),
                              DdpOptions().find_unused_parameters(true), DdpOptions().gradient_as_bucket_view(false),
                              DdpOptions().delay_all_reduce(true), DdpOptions().broadcast_buffers(false)}) {
    run_threads(3, [&](const World& world) { train(world, options, kBatches, true); });
  }
}

TEST(Join, DividesGradientsOnTheirWayIntoTheBuckets) {
  for (const bool divide_by_initial_size : {true, false}) {
    run_threads(3, [&](const World& world) {
      const auto options = DdpOptions().hook(std::make_shared<testing::SumHook>()).bucket_bytes(48);
      train(world, options, kBatches, divide_by_initial_size);
    });
  }
}

TEST(Join, LetsARankHaveNoBatchAtAll) {
  const auto options = DdpOptions().bucket_bytes(48).first_bucket_bytes(32);
  run_threads(2, [&](const World& world) { train(world, options, {0, 4}, true); });
}

TEST(Join, RefusesWhatARankWithoutBatchesCannotAnswer) {
  run_threads(1, [](const World& world) {
    const auto ddp = distribute(std::make_shared<Chain>(), world, DdpOptions().static_graph(true));
    expect_parts(message_of<ConfigError>([&] { const auto join = ddp.join(); }), {"run one step before join()"});
    torch::nn::Sequential norms(SyncBatchNorm(torch::nn::BatchNormOptions(3), world));
    const auto other = distribute(norms, world);
    expect_parts(message_of<ConfigError>([&] { const auto join = other.join(); }),
                 {"the layer \"0\"", "whose calls a rank without batches cannot answer"});
  });
}

TEST(Join, RefusesParametersThatAreFrozenInside) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    const auto join = ddp.join();
    testing::backward(*model, 0);
    model->first->weight.set_requires_grad(false);
    expect_parts(message_of<ConfigError>([&] { testing::backward(*model, 0); }),
                 {"frozen or unfrozen inside join()", "outside of it", "rank 0"});
  });
}

TEST(Join, CanBeFollowedByAnother) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Chain>();
    const auto ddp = distribute(model, world);
    std::unique_ptr<Join> join;
    for (int epoch = 0; epoch < 3; ++epoch) {
      join = std::make_unique<Join>(ddp.state(), true);
      expect_parts(message_of<ConfigError>([&] { const auto second = ddp.join(); }),
                   {"this model is in a join() already"});
      for (int step = 0; step < 1 + (world.rank() + epoch) % 2; ++step) {
        model->zero_grad();
        model->forward(input_of(world.rank(), step)).sum().backward();
      }
      join->finish();
      expect_parts(message_of<ConfigError>([&] { join->finish(); }), {"finish() was called twice"});
    }
  });
}

}  // namespace
}  // namespace tessera
