// What the ring and the tree send, against the formulas and against what a fake world counts.
#include <tessera/comm/world.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <mutex>
#include <string>

#include "comm/algorithms/ring_engine.h"
#include "comm/algorithms/tree_engine.h"
#include "comm/engine/engine_backend.h"
#include "comm/thread_transports.h"

namespace tessera::comm {
namespace {

constexpr int kMostRanks = 9;
constexpr std::int64_t kElement = 4;

struct Traffic {
  std::uint64_t num_messages = 0;
  std::uint64_t num_bytes = 0;
};

/// One operation, on an engine and on a communicator.
struct CountedOperation {
  std::string name;
  std::function<void(CollectiveEngine&, int rank, Deadline)> on_engine;
  std::function<void(const Communicator&)> on_comm;
};

std::shared_ptr<MessageEngine> make_engine(CommunicationStrategy strategy, std::shared_ptr<Transport> transport,
                                           int rank, int size) {
  if (strategy == CommunicationStrategy::kRing)
    return std::make_shared<RingEngine>(std::move(transport), rank, size, kRingChannel);
  return std::make_shared<TreeEngine>(std::move(transport), rank, size, kTreeChannel);
}

std::vector<Traffic> measure(CommunicationStrategy strategy, int size, const CountedOperation& operation) {
  std::vector<Traffic> traffic(static_cast<std::size_t>(size));
  testing::with_transports(size, [&](int rank, const std::shared_ptr<Transport>& transport) {
    const auto engine = make_engine(strategy, transport, rank, size);
    operation.on_engine(*engine, rank, Deadline::after(std::chrono::seconds(30)));
    traffic[static_cast<std::size_t>(rank)] = {engine->messages().num_messages(), engine->messages().num_bytes()};
    // A rank that leaves takes its transport along; the others may still read from it.
    engine->barrier(Deadline::after(std::chrono::seconds(30)));
  });
  return traffic;
}

Traffic fake(CommunicationStrategy strategy, int rank, int size, const CountedOperation& operation) {
  const World world = fake_world(rank, size, size);
  operation.on_comm(world.comm().with_strategy(strategy));
  const FakeTraffic traffic = fake_traffic(world);
  EXPECT_EQ(traffic.num_calls, 1U) << operation.name;
  return {traffic.num_messages, traffic.num_bytes};
}

at::Tensor floats(std::int64_t count) { return at::zeros({count}); }

CountedOperation all_reduce_of(std::int64_t count) {
  return {"all_reduce x" + std::to_string(count),
          [count](CollectiveEngine& engine, int, Deadline deadline) {
            const auto data = floats(count);
            engine.all_reduce(buffer_of(data), ReduceOp::kSum, deadline);
          },
          [count](const Communicator& comm) { comm.all_reduce(floats(count)); }};
}

CountedOperation all_gather_of(const Counts& counts) {
  return {"all_gather",
          [counts](CollectiveEngine& engine, int rank, Deadline deadline) {
            const auto whole = floats(offsets_of(counts).back());
            const auto piece = floats(counts[static_cast<std::size_t>(rank)]);
            engine.all_gather(buffer_of(whole), buffer_of(piece), counts, deadline);
          },
          [counts](const Communicator& comm) {
            comm.all_gather(floats(counts[static_cast<std::size_t>(comm.rank())]), 0, counts);
          }};
}

CountedOperation reduce_scatter_of(const Counts& counts) {
  return {"reduce_scatter",
          [counts](CollectiveEngine& engine, int rank, Deadline deadline) {
            const auto whole = floats(offsets_of(counts).back());
            const auto piece = floats(counts[static_cast<std::size_t>(rank)]);
            engine.reduce_scatter(buffer_of(piece), buffer_of(whole), counts, ReduceOp::kSum, deadline);
          },
          [counts](const Communicator& comm) {
            comm.reduce_scatter(floats(offsets_of(counts).back()), ReduceOp::kSum, 0, counts);
          }};
}

CountedOperation broadcast_from(int root) {
  return {"broadcast from " + std::to_string(root),
          [root](CollectiveEngine& engine, int, Deadline deadline) {
            const auto data = floats(12);
            engine.broadcast(buffer_of(data), root, deadline);
          },
          [root](const Communicator& comm) { comm.broadcast(floats(12), root); }};
}

CountedOperation reduce_to(int root) {
  return {"reduce to " + std::to_string(root),
          [root](CollectiveEngine& engine, int, Deadline deadline) {
            const auto data = floats(12);
            engine.reduce(buffer_of(data), root, ReduceOp::kMax, deadline);
          },
          [root](const Communicator& comm) { comm.reduce(floats(12), root, ReduceOp::kMax); }};
}

CountedOperation gather_to(int root, const Counts& counts) {
  return {"gather to " + std::to_string(root),
          [=](CollectiveEngine& engine, int rank, Deadline deadline) {
            const auto whole = floats(offsets_of(counts).back());
            const auto piece = floats(counts[static_cast<std::size_t>(rank)]);
            engine.gather(buffer_of(whole), buffer_of(piece), counts, root, deadline);
          },
          [=](const Communicator& comm) {
            comm.gather(floats(counts[static_cast<std::size_t>(comm.rank())]), root, 0, counts);
          }};
}

CountedOperation scatter_from(int root, const Counts& counts) {
  return {"scatter from " + std::to_string(root),
          [=](CollectiveEngine& engine, int rank, Deadline deadline) {
            const auto whole = floats(offsets_of(counts).back());
            const auto piece = floats(counts[static_cast<std::size_t>(rank)]);
            engine.scatter(buffer_of(piece), buffer_of(whole), counts, root, deadline);
          },
          [=](const Communicator& comm) { comm.scatter(floats(offsets_of(counts).back()), root, 0, counts); }};
}

/// Rank r sends one element to every rank below it, and one to itself.
CountedOperation uneven_all_to_all(int size) {
  const auto sent = [size](int rank) {
    Counts counts(static_cast<std::size_t>(size), 0);
    std::fill(counts.begin(), counts.begin() + rank + 1, 1);
    return counts;
  };
  const auto received = [size](int rank) {
    Counts counts(static_cast<std::size_t>(size), 0);
    std::fill(counts.begin() + rank, counts.end(), 1);
    return counts;
  };
  return {"all_to_all",
          [=](CollectiveEngine& engine, int rank, Deadline deadline) {
            const auto out = floats(rank + 1);
            const auto in = floats(size - rank);
            engine.all_to_all(buffer_of(in), received(rank), buffer_of(out), sent(rank), deadline);
          },
          [=](const Communicator& comm) {
            comm.all_to_all(floats(comm.rank() + 1), 0, sent(comm.rank()), received(comm.rank()));
          }};
}

CountedOperation barrier() {
  return {"barrier", [](CollectiveEngine& engine, int, Deadline deadline) { engine.barrier(deadline); },
          [](const Communicator& comm) { comm.barrier(); }};
}

std::vector<CountedOperation> all_operations(int size) {
  Counts uneven;  // with an empty piece
  for (int r = 0; r < size; ++r) uneven.push_back(r % 3);
  const Counts even(static_cast<std::size_t>(size), 3);
  std::vector<CountedOperation> operations = {all_reduce_of(0),        all_reduce_of(1),
                                              all_reduce_of(size),     all_reduce_of(7 * size + 1),
                                              all_gather_of(even),     all_gather_of(uneven),
                                              reduce_scatter_of(even), reduce_scatter_of(uneven),
                                              uneven_all_to_all(size), barrier()};
  for (int root = 0; root < size; ++root) {
    operations.push_back(broadcast_from(root));
    operations.push_back(reduce_to(root));
    operations.push_back(gather_to(root, uneven));
    operations.push_back(scatter_from(root, uneven));
  }
  return operations;
}

TEST(RingTraffic, AllReduceSendsTwiceAllButOnesOwnShare) {
  for (int size = 1; size <= kMostRanks; ++size) {
    const auto n = static_cast<std::uint64_t>(size);
    const std::uint64_t num_bytes = n * 6 * kElement;
    for (const Traffic& sent : measure(CommunicationStrategy::kRing, size, all_reduce_of(size * 6))) {
      EXPECT_EQ(sent.num_messages, 2 * (n - 1)) << size << " ranks";
      EXPECT_EQ(sent.num_bytes, 2 * (n - 1) * num_bytes / n) << size << " ranks";
    }
  }
}

TEST(RingTraffic, GatherAndScatterHalvesSendAllButOneShare) {
  for (int size = 1; size <= kMostRanks; ++size) {
    const Counts counts(static_cast<std::size_t>(size), 5);
    const auto n = static_cast<std::uint64_t>(size);
    for (const auto& operation : {all_gather_of(counts), reduce_scatter_of(counts)}) {
      for (const Traffic& sent : measure(CommunicationStrategy::kRing, size, operation)) {
        EXPECT_EQ(sent.num_messages, n - 1) << operation.name << " on " << size;
        EXPECT_EQ(sent.num_bytes, (n - 1) * 5 * kElement) << operation.name << " on " << size;
      }
    }
  }
}

TEST(TreeTraffic, AllReduceCrossesEveryEdgeOnceUpAndOnceDown) {
  for (int size = 1; size <= kMostRanks; ++size) {
    Traffic total;
    std::uint64_t busiest = 0;
    for (const Traffic& sent : measure(CommunicationStrategy::kTree, size, all_reduce_of(10))) {
      total.num_messages += sent.num_messages;
      total.num_bytes += sent.num_bytes;
      busiest = std::max(busiest, sent.num_messages);
    }
    const auto n = static_cast<std::uint64_t>(size);
    EXPECT_EQ(total.num_messages, 2 * (n - 1)) << size << " ranks";
    EXPECT_EQ(total.num_bytes, 2 * (n - 1) * 10 * kElement) << size << " ranks";
    EXPECT_LE(busiest, static_cast<std::uint64_t>(std::bit_width(n - 1))) << "no rank sends more than the depth";
  }
}

TEST(FakeTraffic, CountsWhatTheEnginesSend) {
  for (const auto strategy : {CommunicationStrategy::kRing, CommunicationStrategy::kTree}) {
    for (int size = 1; size <= kMostRanks; ++size) {
      for (const auto& operation : all_operations(size)) {
        const auto real = measure(strategy, size, operation);
        for (int rank = 0; rank < size; ++rank) {
          const Traffic counted = fake(strategy, rank, size, operation);
          const Traffic& sent = real[static_cast<std::size_t>(rank)];
          const auto where = operation.name + " by " + std::string(to_string(strategy)) + " on rank " +
                             std::to_string(rank) + " of " + std::to_string(size);
          EXPECT_EQ(counted.num_messages, sent.num_messages) << where;
          EXPECT_EQ(counted.num_bytes, sent.num_bytes) << where;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::comm
