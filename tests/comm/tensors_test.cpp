// Tensors that are not plain: strided, requiring gradients, refused.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Tensors, StridedOnesAreReducedInPlace) {
  run_threads(3, [](const World& world) {
    const at::Tensor base = at::arange(12, at::kFloat).reshape({3, 4});
    at::Tensor column = base.select(1, 2);
    world.comm().all_reduce(column);
    at::Tensor expected = at::arange(12, at::kFloat).reshape({3, 4});
    expected.select(1, 2).mul_(3);
    EXPECT_TRUE(at::equal(base, expected)) << "only the column changes";
    at::Tensor turned = at::ones({2, 5}).t();
    Work work = world.comm().all_reduce_async(turned);
    work.wait();
    EXPECT_TRUE(at::equal(turned, at::full({5, 2}, 3.0F)));
  });
}

TEST(Tensors, StridedOnesAreSentAndReceived) {
  run_threads(2, [](const World& world) {
    at::Tensor values = at::arange(6, at::kFloat).reshape({2, 3});
    if (world.rank() == 0) {
      world.comm().send(values.t(), 1);
    } else {
      at::Tensor place = at::zeros({2, 3});
      world.comm().recv(place.t(), 0);
      EXPECT_TRUE(at::equal(place, values));
    }
    at::Tensor wide = at::zeros({3, 4});
    if (world.rank() == 1) wide.select(1, 1).fill_(5);
    world.comm().broadcast(wide.select(1, 1), 1);
    EXPECT_EQ(wide.sum().item<float>(), 15);
  });
}

TEST(Tensors, ThoseThatRequireGradientsAreMovedWithoutAGraph) {
  for (const auto strategy : {CommunicationStrategy::kBackend, CommunicationStrategy::kRing,
                              CommunicationStrategy::kTree, CommunicationStrategy::kHierarchical}) {
    run_threads(
        2,
        [&](const World& world) {
          const auto comm = world.comm().with_strategy(strategy);
          at::Tensor leaf = at::full({4, 2}, world.rank() + 1.0F).requires_grad_();
          comm.all_reduce(leaf, ReduceOp::kAvg);
          EXPECT_TRUE(leaf.is_leaf());
          EXPECT_TRUE(leaf.requires_grad());
          EXPECT_EQ(leaf.sum().item<float>(), 12);
          comm.broadcast(leaf, 1);
          comm.reduce(leaf, 0);
          for (const at::Tensor& made : {comm.all_gather(leaf), comm.all_gather(leaf, 1), comm.reduce_scatter(leaf),
                                         comm.all_to_all(leaf), comm.scatter(leaf, 0)}) {
            EXPECT_FALSE(made.requires_grad());
          }
          at::Tensor turned = at::ones({2, 4}).requires_grad_().t();
          comm.all_reduce(turned);
          EXPECT_EQ(turned.sum().item<float>(), 16);
        },
        WorldOptions(), 1);
  }
}

TEST(Tensors, AStridedLeafThatRequiresGradientsIsReduced) {
  run_threads(2, [](const World& world) {
    at::Tensor leaf = at::ones({4, 2}).t().requires_grad_();
    ASSERT_FALSE(leaf.is_contiguous());
    world.comm().all_reduce(leaf);
    EXPECT_EQ(leaf.sum().item<float>(), 16);
    EXPECT_TRUE(leaf.is_leaf());
  });
}

TEST(Tensors, IntoFormsTakeTheirOwnSlice) {
  run_threads(3, [](const World& world) {
    at::Tensor whole = at::zeros({6});
    at::Tensor slice = whole.narrow(0, 2 * world.rank(), 2);
    slice.fill_(world.rank() + 1.0F);
    world.comm().all_gather_into(whole, slice);
    EXPECT_TRUE(at::equal(whole, at::tensor({1.0F, 1.0F, 2.0F, 2.0F, 3.0F, 3.0F})));
    world.comm().reduce_scatter_into(slice, whole);
    EXPECT_TRUE(at::equal(slice, at::full({2}, 3 * (world.rank() + 1.0F))));
  });
}

TEST(Tensors, AnAverageOfIntegersIsRefused) {
  run_threads(2, [](const World& world) {
    EXPECT_THROW(world.comm().all_reduce(at::ones({2}, at::kLong), ReduceOp::kAvg), ConfigError);
    EXPECT_THROW(world.comm().reduce_scatter(at::ones({2}, at::kInt), ReduceOp::kAvg), ConfigError);
    EXPECT_THROW(world.comm().reduce(at::ones({2}, at::kInt), 0, ReduceOp::kAvg), ConfigError);
  });
}

TEST(Tensors, AnAverageOfIntegersIsRefusedThroughC10dToo) {
  run_threads(2, [](const World& world) {
    std::vector<at::Tensor> tensors{at::full({2}, 3, at::kLong)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    EXPECT_ANY_THROW(world.comm().process_group()->allreduce(tensors, options)->wait())
        << "made a sum instead: " << tensors.front()[0].item<int>();
  });
}

TEST(Tensors, ShapesThatDoNotFitAreRefused) {
  run_threads(2, [](const World& world) {
    const Communicator& comm = world.comm();
    EXPECT_THROW(comm.reduce_scatter(at::ones({3})), ConfigError);
    EXPECT_THROW(comm.all_to_all(at::ones({3})), ConfigError);
    EXPECT_THROW(comm.all_gather(at::ones({2}), 1), ConfigError);
    EXPECT_THROW(comm.all_gather(at::ones({2}), 0, {2}), ConfigError);
    EXPECT_THROW(comm.all_gather(at::ones({5}), 0, {2, 2}), ConfigError);
    EXPECT_THROW(comm.scatter(at::ones({4}), 0, 0, {1, 2}), ConfigError);
    EXPECT_THROW(comm.all_to_all(at::ones({4}), 0, {2, 2}), ConfigError);
    EXPECT_THROW(comm.gather(at::ones({4}), 0, 0, {3, 3}), ConfigError);
  });
}

TEST(Tensors, RanksThatDoNotExistAreRefused) {
  run_threads(2, [](const World& world) {
    const Communicator& comm = world.comm();
    EXPECT_THROW(comm.broadcast(at::ones({1}), 2), ConfigError);
    EXPECT_THROW(comm.reduce(at::ones({1}), -1), ConfigError);
    EXPECT_THROW(comm.gather(at::ones({1}), 2), ConfigError);
    EXPECT_THROW(comm.scatter(at::ones({2}), 2), ConfigError);
    EXPECT_THROW(comm.send(at::ones({1}), 2), ConfigError);
    EXPECT_THROW(comm.recv(at::ones({1}), -1), ConfigError);
    EXPECT_THROW(comm.send(at::ones({1}), world.rank()), ConfigError);
    EXPECT_THROW(comm.recv(at::ones({1}), world.rank()), ConfigError);
    EXPECT_THROW(comm.world_rank_of(2), ConfigError);
  });
}

TEST(Tensors, ExpandedOnesAreNotWrittenThroughOneElement) {
  // One element stands for four; a result written back through it could not be right.
  run_threads(2, [](const World& world) {
    at::Tensor expanded = at::ones({1}).expand({4});
    EXPECT_ANY_THROW(world.comm().all_reduce(expanded));
  });
}

}  // namespace
}  // namespace tessera
