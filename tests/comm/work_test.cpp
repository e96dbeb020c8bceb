#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

namespace tessera {
namespace {

using std::chrono::milliseconds;

// Large enough that the allocator returns the pages of a freed tensor at once: a late reader would crash.
constexpr std::int64_t kBig = std::int64_t{4} << 20;

// For operations that might never end: the test shall not take the default 30 seconds to say so.
const WorldOptions kFewSeconds = WorldOptions().timeout(milliseconds(4000));

/// Polls without waiting.
bool completes(const Work& work) {
  for (int i = 0; i < 2000; ++i) {
    if (work.is_completed()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

TEST(Work, IsCompletedTellsWithoutBlocking) {
  std::latch seen(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 1) {
      seen.wait();
      world.comm().all_reduce(at::ones({4}));
      return;
    }
    at::Tensor tensor = at::ones({4});
    Work work = world.comm().all_reduce_async(tensor);
    EXPECT_FALSE(work.is_completed());
    seen.count_down();
    EXPECT_TRUE(completes(work));
    work.wait();
    EXPECT_TRUE(work.is_completed());
    EXPECT_TRUE(at::equal(tensor, at::full({4}, 2.0F)));
  });
}

TEST(Work, AnEmptyOneIsDone) {
  Work work;
  EXPECT_TRUE(work.is_completed());
  work.wait();
  EXPECT_THROW(work.result(), ConfigError);
}

TEST(Work, MayBeWaitedForTwiceAndThroughCopies) {
  run_threads(2, [](const World& world) {
    Work work = world.comm().all_gather_async(at::full({1}, world.rank(), at::kInt));
    Work copy = work;
    EXPECT_TRUE(at::equal(copy.result(), at::tensor({0, 1}, at::kInt)));
    work.wait();
    EXPECT_TRUE(at::equal(work.result(), at::tensor({0, 1}, at::kInt)));
  });
}

TEST(Work, AFailedOneFailsAtEveryWait) {
  std::latch other(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 1) {
      other.wait();
      return;
    }
    Work work = world.comm().with_timeout(milliseconds(100)).all_gather_async(at::ones({4}));
    Work copy = work;
    EXPECT_THROW(work.wait(), CommError);
    EXPECT_THROW(work.wait(), CommError) << "the second wait hides the failure";
    EXPECT_THROW(copy.result(), CommError) << "a copy hands out a result that never came";
    other.count_down();
  });
}

TEST(Work, ResultIsRefusedWhereThereIsNone) {
  run_threads(2, [](const World& world) {
    EXPECT_THROW(world.comm().all_reduce_async(at::ones({1})).result(), ConfigError);
    EXPECT_THROW(world.comm().barrier_async().result(), ConfigError);
    Work gathered = world.comm().gather_async(at::ones({1}), 1);
    if (world.rank() == 1) {
      EXPECT_EQ(gathered.result().numel(), 2);
    } else {
      EXPECT_THROW(gathered.result(), ConfigError);
    }
  });
}

TEST(Work, DroppingACollectiveLeavesItRunning) {
  run_threads(2, [](const World& world) {
    at::Tensor kept = at::ones({kBig});
    {
      world.comm().all_reduce_async(kept);
      world.comm().all_reduce_async(at::ones({kBig}));  // nobody else holds this one
      world.comm().all_gather_async(at::ones({1000}));
    }
    world.comm().barrier();
    EXPECT_TRUE(at::equal(kept, at::full({kBig}, 2.0F)));
  });
}

TEST(Work, DroppingASendStillDelivers) {
  const auto body = [](const World& world) {
    if (world.rank() == 0) {
      // Neither the work nor the tensor is held.
      world.comm().send_async(at::full({kBig}, 7.0F), 1);
      world.comm().send_async(at::full({3}, 8.0F), 1);
    } else {
      std::this_thread::sleep_for(milliseconds(50));
      EXPECT_TRUE(at::equal(world.comm().recv({kBig}, at::kFloat, 0), at::full({kBig}, 7.0F)));
      EXPECT_TRUE(at::equal(world.comm().recv({3}, at::kFloat, 0), at::full({3}, 8.0F)));
    }
    world.comm().barrier();
  };
  run_threads(2, body, kFewSeconds);
}

TEST(Work, DroppingSendsInBothDirectionsBlocksNobody) {
  const auto body = [](const World& world) {
    const int other = 1 - world.rank();
    world.comm().send_async(at::full({kBig}, world.rank() + 1.0F), other);
    EXPECT_TRUE(at::equal(world.comm().recv({kBig}, at::kFloat, other), at::full({kBig}, other + 1.0F)));
    world.comm().barrier();
  };
  run_threads(2, body, kFewSeconds);
}

TEST(Work, DroppingAReceiveStillTakesTheMessage) {
  const auto body = [](const World& world) {
    if (world.rank() == 0) {
      at::Tensor place = at::zeros({kBig});
      world.comm().recv_async(place, 1);
      world.comm().recv_async(at::empty({kBig}), 1);  // nobody holds the tensor either
      EXPECT_TRUE(at::equal(world.comm().recv({1}, at::kFloat, 1), at::full({1}, 3.0F)));
      EXPECT_TRUE(at::equal(place, at::ones({kBig})));
    } else {
      std::this_thread::sleep_for(milliseconds(20));
      world.comm().send(at::full({kBig}, 1.0F), 0);
      world.comm().send(at::full({kBig}, 2.0F), 0);
      world.comm().send(at::full({1}, 3.0F), 0);
    }
    world.comm().barrier();
  };
  run_threads(2, body, kFewSeconds);
}

TEST(Work, ADroppedSendArrivesThoughItsSenderLeaves) {
  const auto body = [](const World& world) {
    if (world.rank() == 0) {
      world.comm().send_async(at::full({kBig}, 7.0F), 1);
      return;
    }
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_TRUE(at::equal(world.comm().recv({kBig}, at::kFloat, 0), at::full({kBig}, 7.0F)));
  };
  run_threads(2, body, kFewSeconds);
}

TEST(Work, ASendArrivesThoughItsSenderDoesNotWait) {
  std::latch arrived(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 0) {
      const at::Tensor tensor = at::full({kBig}, 7.0F);
      Work work = world.comm().send_async(tensor, 1);
      arrived.wait();  // no call of the library meanwhile
      work.wait();
    } else {
      EXPECT_TRUE(at::equal(world.comm().recv({kBig}, at::kFloat, 0), at::full({kBig}, 7.0F)));
      arrived.count_down();
    }
  });
}

TEST(Work, AReceiveCompletesThoughNobodyWaits) {
  std::latch sent(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 0) {
      world.comm().send(at::full({kBig}, 7.0F), 1);
      sent.count_down();
    } else {
      at::Tensor tensor = at::zeros({kBig});
      Work work = world.comm().recv_async(tensor, 0);
      sent.wait();
      EXPECT_TRUE(completes(work));
      work.wait();
      EXPECT_TRUE(at::equal(tensor, at::full({kBig}, 7.0F)));
    }
  });
}

TEST(Work, ManyMessagesKeepTheirOrderWhateverTheOrderOfWaits) {
  run_threads(3, [](const World& world) {
    const Communicator& comm = world.comm();
    const int next = (world.rank() + 1) % 3;
    const int before = (world.rank() + 2) % 3;
    std::vector<Work> sends;
    std::vector<Work> receives;
    for (int i = 0; i < 20; ++i) receives.push_back(comm.recv_async(at::empty({1000 * i}, at::kInt), before));
    for (int i = 0; i < 20; ++i) sends.push_back(comm.send_async(at::full({1000 * i}, i, at::kInt), next));
    for (int i = 19; i >= 0; --i) {
      sends[static_cast<std::size_t>(i)].wait();
      const at::Tensor got = receives[static_cast<std::size_t>(i)].result();
      EXPECT_TRUE(at::equal(got, at::full({1000 * i}, i, at::kInt))) << i;
    }
  });
}

TEST(Work, AsynchronousCallsKeepTheirOrderAmongSynchronousOnes) {
  run_threads(4, [](const World& world) {
    at::Tensor tensor = at::ones({10}, at::kLong);
    Work first = world.comm().all_reduce_async(tensor);
    world.comm().all_reduce(tensor);
    Work third = world.comm().all_reduce_async(tensor);
    third.wait();
    first.wait();
    EXPECT_EQ(tensor[0].item<int>(), 64);
  });
}

}  // namespace
}  // namespace tessera
