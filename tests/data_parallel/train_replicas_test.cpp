#include <tessera/data_parallel/data_parallel.h>
#include <tessera/data_parallel/synchroniser.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include "data_parallel/replica_models.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::make_model;
using testing::MlpImpl;
using testing::random_values;

TEST(TrainReplicas, GivesEachReplicaParametersOfItsOwn) {
  const auto model = make_model<MlpImpl>();
  const DataParallel<MlpImpl> parallel(model, DataParallelOptions().num_replicas(3));
  std::vector<MlpImpl*> seen(3);
  parallel.train_replicas([&](MlpImpl& replica, const World& world) {
    EXPECT_EQ(world.size(), 3);
    seen[static_cast<std::size_t>(world.rank())] = &replica;
    EXPECT_TRUE(at::equal(replica.first->weight, make_model<MlpImpl>()->first->weight));
    world.comm().barrier();
    const at::NoGradGuard no_grad;
    replica.first->weight.fill_(world.rank());
    world.comm().barrier();
    EXPECT_TRUE(at::equal(replica.first->weight, at::full({16, 6}, world.rank(), at::kDouble)));
  });
  EXPECT_EQ(seen[0], model.get());
  EXPECT_NE(seen[1], seen[2]);
  EXPECT_TRUE(at::equal(model->first->weight, at::full({16, 6}, 1.0, at::kDouble))) << "the average";
  EXPECT_TRUE(at::equal(model->second->weight, make_model<MlpImpl>()->second->weight)) << "equal: untouched";
}

TEST(TrainReplicas, TrainsWithLocalStepsAndAveragesNowAndThen) {
  const auto model = make_model<MlpImpl>();
  const DataParallel<MlpImpl> parallel(model, DataParallelOptions().num_replicas(2));
  const at::Tensor input = random_values({32, 6}, 1);
  const at::Tensor target = input.narrow(1, 0, 3).sin();
  const auto loss = [&] { return at::mse_loss(parallel.forward(input), target).item<double>(); };
  const double before = loss();
  parallel.train_replicas([&](MlpImpl& replica, const World& world) {
    torch::optim::SGD optimizer(replica.parameters(), 0.1);
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const auto rows = at::indexing::Slice(world.rank() * 16, world.rank() * 16 + 16);
      at::mse_loss(replica.forward(input.index({rows})), target.index({rows})).backward();
      optimizer.step();
      if (step % 4 != 3) continue;
      for (const at::Tensor& parameter : replica.parameters()) world.comm().all_reduce(parameter, ReduceOp::kAvg);
    }
  });
  EXPECT_LT(loss(), before * 0.7);
}

TEST(TrainReplicas, TrainsInEveryModeOfSynchronisation) {
  for (const std::string mode : {"synchronous", "bounded_staleness", "asynchronous", "local_sgd"}) {
    const auto model = make_model<MlpImpl>();
    const DataParallel<MlpImpl> parallel(model, DataParallelOptions().num_replicas(2));
    const at::Tensor input = random_values({32, 6}, 1);
    const at::Tensor target = input.narrow(1, 0, 3).sin();
    const auto loss = [&] { return at::mse_loss(parallel.forward(input), target).item<double>(); };
    const double before = loss();
    parallel.train_replicas([&](MlpImpl& replica, const World& world) {
      torch::optim::SGD optimizer(replica.parameters(), 0.1);
      const auto options = SynchroniserOptions().mode(mode).max_staleness(2).period(4);
      Synchroniser sync(replica.parameters(), world, options);
      const auto rows = at::indexing::Slice(world.rank() * 16, world.rank() * 16 + 16);
      for (int step = 0; step < 40; ++step) {
        optimizer.zero_grad();
        at::mse_loss(replica.forward(input.index({rows})), target.index({rows})).backward();
        sync.step(optimizer);
      }
      sync.finish(optimizer);
      if (mode == "bounded_staleness") {
        EXPECT_LE(sync.staleness().largest(), 2U);
      }
      const at::Tensor of_rank_0 = replica.first->weight.detach().clone();
      world.comm().broadcast(of_rank_0, 0);
      EXPECT_TRUE(at::equal(of_rank_0, replica.first->weight)) << mode;
    });
    // Without a bound nothing is promised: on a busy machine gradients of such small steps come very late.
    if (mode != "asynchronous") {
      EXPECT_LT(loss(), before * 0.7) << mode;
    }
  }
}

TEST(TrainReplicas, ThrowsWhatARankThrew) {
  const DataParallel<MlpImpl> parallel(make_model<MlpImpl>(), DataParallelOptions().num_replicas(2));
  const auto message = testing::message_of<std::runtime_error>([&] {
    parallel.train_replicas([](MlpImpl& /*replica*/, const World& world) {
      if (world.rank() == 1) throw std::runtime_error("rank 1 is tired");
    });
  });
  testing::expect_parts(message, {"tired"});
}

}  // namespace
}  // namespace tessera
