// What goes wrong between ranks, and which errors the others get.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "support/at_once.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::at_once;
using testing::expect_parts;
using testing::message_of;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

double seconds_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

using Operation = std::function<void(const Communicator&)>;

const std::vector<std::pair<std::string, Operation>>& operations() {
  static const std::vector<std::pair<std::string, Operation>> list = {
      {"all_reduce", [](const Communicator& comm) { comm.all_reduce(at::ones({10})); }},
      {"all_reduce", [](const Communicator& comm) { comm.all_reduce(at::ones({100'000})); }},
      {"all_gather", [](const Communicator& comm) { comm.all_gather(at::ones({2})); }},
      {"reduce_scatter", [](const Communicator& comm) { comm.reduce_scatter(at::ones({6})); }},
      {"broadcast", [](const Communicator& comm) { comm.broadcast(at::ones({2}), 2); }},
      {"reduce", [](const Communicator& comm) { comm.reduce(at::ones({2}), 0); }},
      {"gather", [](const Communicator& comm) { comm.gather(at::ones({2}), 0); }},
      {"scatter", [](const Communicator& comm) { comm.scatter(at::ones({3}), 2); }},
      {"all_to_all", [](const Communicator& comm) { comm.all_to_all(at::ones({3})); }},
      {"barrier", [](const Communicator& comm) { comm.barrier(); }},
      {"recv", [](const Communicator& comm) { comm.recv({2}, at::kFloat, 2); }},
  };
  return list;
}

TEST(Timeout, ARankThatDoesNotComeFailsTheOthersInTime) {
  at_once(operations(), [](const auto& named) {
    const std::string& name = named.first;
    const Operation& operation = named.second;
    std::latch others(2);
    run_threads(3, [&](const World& world) {
      if (world.rank() == 2) {
        others.wait();
        return;
      }
      const auto start = Clock::now();
      const auto message = message_of<CommError>([&] { operation(world.comm().with_timeout(milliseconds(300))); });
      const double took = seconds_since(start);
      EXPECT_GE(took, 0.25) << name;
      EXPECT_LT(took, 5) << name;
      expect_parts(message, {name + " #1 of group world", "rank " + std::to_string(world.rank()) + " of 3",
                             "failure_test.cpp:", "300 ms"});
      EXPECT_EQ(world.comm().recent_calls().back().state, CallState::kFailed) << name;
      others.count_down();
    });
  });
}

TEST(Timeout, ActsForEveryStrategy) {
  const auto strategies = {CommunicationStrategy::kRing, CommunicationStrategy::kTree,
                           CommunicationStrategy::kHierarchical, CommunicationStrategy::kAdaptive};
  at_once(strategies, [](CommunicationStrategy strategy) {
    std::latch others(2);
    run_threads(
        3,
        [&](const World& world) {
          if (world.rank() == 2) {
            others.wait();
            return;
          }
          const auto comm = world.comm().with_strategy(strategy).with_timeout(milliseconds(300));
          const auto start = Clock::now();
          const auto message = message_of<CommError>([&] { comm.all_reduce(at::ones({10})); });
          EXPECT_LT(seconds_since(start), 5) << to_string(strategy);
          expect_parts(message, {"all_reduce", "failure_test.cpp:"});
          others.count_down();
        },
        WorldOptions(), 2);
  });
}

TEST(Timeout, IsThrownByTheAsynchronousWait) {
  std::latch other(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 1) {
      other.wait();
      return;
    }
    Work work = world.comm().with_timeout(milliseconds(200)).all_reduce_async(at::ones({4}));
    expect_parts(message_of<CommError>([&] { work.wait(); }), {"all_reduce #1 of group world", "failure_test.cpp:"});
    other.count_down();
  });
}

TEST(Timeout, ComesFromTheWorldsOptions) {
  std::latch other(1);
  run_threads(
      2,
      [&](const World& world) {
        EXPECT_EQ(world.comm().timeout(), milliseconds(150));
        if (world.rank() == 1) {
          other.wait();
          return;
        }
        EXPECT_THROW(world.comm().barrier(), CommError);
        other.count_down();
      },
      WorldOptions().timeout(milliseconds(150)));
}

TEST(Timeout, MustBeAboveZero) {
  const World world = fake_world(0, 1);
  EXPECT_THROW(world.comm().with_timeout(milliseconds(0)), ConfigError);
  EXPECT_THROW(fake_world(0, 1, 8, WorldOptions().timeout(milliseconds(0))), ConfigError);
}

/// Rank 1 calls `odd`, the others `usual`; every rank must be refused with both named.
void expect_mismatch(const Operation& usual, const Operation& odd, std::initializer_list<std::string_view> parts) {
  run_threads(3, [&](const World& world) {
    const auto comm = world.comm().with_timeout(milliseconds(3000));
    const auto message = message_of<ConfigError>([&] { (world.rank() == 1 ? odd : usual)(comm); });
    expect_parts(message, parts);
    expect_parts(message, {"rank 1", "of group world"});
  });
}

TEST(Mismatch, ThatAllRanksCaughtLeavesAGroupThatWorks) {
  const std::vector<Operation> first{[](const Communicator& comm) { comm.all_reduce(at::ones({100'000})); },
                                     [](const Communicator& comm) { comm.all_gather(at::ones({100'000})); },
                                     [](const Communicator& comm) { comm.barrier(); }};
  for (const Operation& one : first) {
    for (const Operation& other : first) {
      if (&one == &other) continue;
      run_threads(2, [&](const World& world) {
        EXPECT_THROW((world.rank() == 0 ? one : other)(world.comm()), ConfigError);
        for (int i = 0; i < 4; ++i) {
          const at::Tensor all = world.comm().all_gather(at::full({1}, 10.0 * i + world.rank()));
          EXPECT_EQ(all[0].item<double>(), 10.0 * i);
          EXPECT_EQ(all[1].item<double>(), 10.0 * i + 1);
          at::Tensor sum = at::full({50'000}, 1.0 + i + world.rank());
          world.comm().all_reduce(sum);
          EXPECT_TRUE(sum.eq(3 + 2 * i).all().item<bool>());
        }
      });
    }
  }
}

TEST(Timeout, LeavesAGroupThatSaysItIsDead) {
  std::latch gave_up(1);
  run_threads(2, [&](const World& world) {
    if (world.rank() == 0) {
      EXPECT_THROW(world.comm().with_timeout(milliseconds(100)).all_gather(at::zeros({1})), CommError);
      gave_up.count_down();
    } else {
      gave_up.wait();
    }
    // Rank 0 was counted once already: without rank 1 it would find the group complete.
    for (int i = 0; i < 2; ++i) {
      expect_parts(message_of<CommError>([&] { world.comm().all_gather(at::ones({1})); }),
                   {"rank 0 of this group gave up", "the group is dead", "split()"});
    }
    const Communicator again = world.comm().split({0, 1}, "again");
    EXPECT_TRUE(again.all_gather(at::ones({1})).eq(1).all().item<bool>());
  });
}

TEST(Mismatch, OfSizesIsRefusedOnEveryRank) {
  expect_mismatch([](const Communicator& comm) { comm.all_reduce(at::ones({4})); },
                  [](const Communicator& comm) { comm.all_reduce(at::ones({5})); },
                  {"all_reduce of 4 Float", "all_reduce of 5 Float"});
  expect_mismatch([](const Communicator& comm) { comm.all_reduce(at::ones({4})); },
                  [](const Communicator& comm) { comm.all_reduce(at::ones({50'000})); }, {"of 4 Float", "of 50000"});
  expect_mismatch([](const Communicator& comm) { comm.all_gather(at::ones({4})); },
                  [](const Communicator& comm) { comm.all_gather(at::ones({5})); }, {"all_gather of 12", "of 15"});
}

TEST(Mismatch, OfTypesIsRefusedOnEveryRank) {
  expect_mismatch([](const Communicator& comm) { comm.all_reduce(at::ones({4})); },
                  [](const Communicator& comm) { comm.all_reduce(at::ones({4}, at::kInt)); }, {"4 Float", "4 Int"});
}

TEST(Mismatch, OfOperationsIsRefusedOnEveryRank) {
  expect_mismatch([](const Communicator& comm) { comm.all_reduce(at::ones({4})); },
                  [](const Communicator& comm) { comm.barrier(); }, {"all_reduce", "barrier"});
  expect_mismatch([](const Communicator& comm) { comm.all_reduce(at::ones({4})); },
                  [](const Communicator& comm) { comm.all_reduce(at::ones({4}), ReduceOp::kMax); },
                  {"op sum", "op max"});
  expect_mismatch([](const Communicator& comm) { comm.broadcast(at::ones({4}), 0); },
                  [](const Communicator& comm) { comm.broadcast(at::ones({4}), 1); }, {"root 0", "root 1"});
}

TEST(Mismatch, OfGatheredPiecesIsRefusedOnEveryRank) {
  // Each rank concludes from its own piece how long all of them are.
  expect_mismatch([](const Communicator& comm) { comm.gather(at::ones({4}), 0); },
                  [](const Communicator& comm) { comm.gather(at::ones({3}), 0); }, {"gather"});
}

TEST(Mismatch, OfUnevenPiecesIsRefusedOnEveryRank) {
  // The same total, cut differently.
  expect_mismatch(
      [](const Communicator& comm) {
        const Communicator::Sizes sizes{2, 4, 2};
        comm.all_gather(at::ones({sizes[static_cast<std::size_t>(comm.rank())]}), 0, sizes);
      },
      [](const Communicator& comm) { comm.all_gather(at::ones({2}), 0, {3, 2, 3}); }, {"all_gather"});
}

TEST(Mismatch, OfAllToAllPiecesIsRefusedOnEveryRank) {
  expect_mismatch([](const Communicator& comm) { comm.all_to_all(at::ones({6})); },
                  [](const Communicator& comm) { comm.all_to_all(at::ones({3})); }, {"all_to_all"});
}

TEST(Mismatch, OfAMessageLongerThanItsPlaceIsRefused) {
  std::latch refused(1);
  run_threads(2, [&](const World& world) {
    const auto comm = world.comm().with_timeout(milliseconds(500));
    if (world.rank() == 0) {
      const Work work = comm.send_async(at::ones({10}), 1);
      refused.wait();
    } else {
      const auto message = message_of<ConfigError>([&] { comm.recv({4}, at::kFloat, 0); });
      expect_parts(message, {"recv #1", "16 bytes", "40", "rank 0"});
      refused.count_down();
    }
  });
}

TEST(Mismatch, OfOneMessageIsNotBlamedOnAnother) {
  std::latch sent(1);
  run_threads(3, [&](const World& world) {
    const auto comm = world.comm().with_timeout(milliseconds(2000));
    if (world.rank() == 0) {
      const Work work = comm.send_async(at::ones({10}), 1);
      sent.count_down();
      comm.barrier();
    } else if (world.rank() == 1) {
      sent.wait();
      EXPECT_THROW(comm.recv({4}, at::kFloat, 0), ConfigError);
      comm.send(at::ones({1}), 2);
      comm.barrier();
    } else {
      comm.recv({1}, at::kFloat, 1);
      comm.barrier();
    }
  });
}

struct Deliberate : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(FailingRank, StopsTheOthersAtOnceAndItsErrorComesOut) {
  for (const auto& [name, operation] : operations()) {
    const auto start = Clock::now();
    const auto message = message_of<Deliberate>([&] {
      run_threads(3, [&](const World& world) {
        if (world.rank() == 2) throw Deliberate("rank 2 does not feel like it");
        operation(world.comm());  // a timeout of 30 s by default
      });
    });
    EXPECT_EQ(message, "rank 2 does not feel like it") << name;
    EXPECT_LT(seconds_since(start), 5) << name;
  }
}

TEST(FailingRank, IsNamedToTheOthers) {
  std::atomic<int> num_failed = 0;
  EXPECT_THROW(run_threads(3,
                           [&](const World& world) {
                             if (world.rank() == 1) throw Deliberate("no");
                             try {
                               world.comm().barrier();
                             } catch (const CommError& error) {
                               expect_parts(error.what(), {"rank 1 has failed", "barrier #1 of group world"});
                               ++num_failed;
                               throw;
                             }
                           }),
               Deliberate);
  EXPECT_EQ(num_failed.load(), 2);
}

TEST(FailingRank, StopsASendThatNobodyTakes) {
  const auto start = Clock::now();
  EXPECT_THROW(run_threads(2,
                           [](const World& world) {
                             if (world.rank() == 1) throw Deliberate("no");
                             world.comm().send(at::ones({1 << 20}), 1);
                           }),
               Deliberate);
  EXPECT_LT(seconds_since(start), 5);
}

TEST(RunThreads, RefusesWhatThreadsCannotBe) {
  EXPECT_THROW(run_threads(0, [](const World&) {}), ConfigError);
  EXPECT_THROW(run_threads(2, [](const World&) {}, WorldOptions().backend("gloo")), ConfigError);
}

}  // namespace
}  // namespace tessera
