#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <torch/torch.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device/on_devices.h"
#include "support/error_message.h"
#include "support/require.h"

// A communicator on devices: what is on the CPU goes as ever, what is on a device by the device's backend.

namespace tessera::testing {
namespace {

using at::Tensor;
using namespace std::chrono_literals;  // NOLINT

using DeviceCommunicator = DeviceTest;

void on_ranks(int num_ranks, const std::function<void(const Communicator&, const at::TensorOptions&)>& run,
              const WorldOptions& options = {}) {
  on_devices(
      num_ranks, [&](const World& world, const at::Device& device) { run(world.comm(), at::TensorOptions(device)); },
      options);
}

TEST_F(DeviceCommunicator, MovesWhatIsOnDevices) {
  on_ranks(3, [](const Communicator& comm, const at::TensorOptions& on) {
    const double mine = comm.rank();
    Tensor sum = torch::full({2, 3}, mine + 1, on).t();
    comm.all_reduce(sum);
    require_equal(sum.sum().item<float>(), 36.F, "a strided sum");
    Tensor mean = torch::full({3}, mine, on);
    comm.all_reduce(mean, ReduceOp::kAvg);
    require_equal(mean[0].item<float>(), 1.F, "a mean");
    require_equal(comm.all_gather(torch::full({2, 1}, mine, on), 1).sum().item<float>(), 6.F, "pieces side by side");
    const Tensor uneven = comm.all_gather(torch::full({comm.rank() + 1}, mine, on), 0, {1, 2, 3});
    require_equal(uneven.sum().item<float>(), 8.F, "uneven pieces");
    require_equal(comm.reduce_scatter(torch::full({3, 2}, mine, on))[0][0].item<float>(), 3.F, "a piece of the sum");
    Tensor of_root = torch::full({2}, mine, on);
    comm.broadcast(of_root, 2);
    require_equal(of_root[1].item<float>(), 2.F, "the root's");
    Tensor reduced = torch::full({2}, mine, on);
    comm.reduce(reduced, 1);
    require_equal(reduced[0].item<float>(), comm.rank() == 1 ? 3.F : static_cast<float>(mine), "the root's sum");
    Tensor given = torch::full({1}, mine, on);
    const Tensor gathered = comm.gather(given, 0);
    given.fill_(7);  // behind the transfer
    if (comm.rank() == 0) require_equal(gathered.sum().item<float>(), 3.F, "gathered");
    const Tensor piece = comm.scatter(torch::arange(3, on.dtype(torch::kFloat)), 1);
    require_equal(piece.item<float>(), static_cast<float>(mine), "scattered");
    const Tensor exchanged = comm.all_to_all(torch::full({3}, mine, on));
    require_equal(exchanged.sum().item<float>(), 3.F, "exchanged");
    const Work sent = comm.send_async(torch::full({2}, mine, on), (comm.rank() + 1) % 3);
    const Tensor received = comm.recv({2}, on.dtype(torch::kFloat), (comm.rank() + 2) % 3);
    require_equal(received[0].item<float>(), static_cast<float>((comm.rank() + 2) % 3), "the neighbour's");
    Work(sent).wait();
    Tensor message = torch::full({2}, mine, on);
    if (comm.rank() == 0) {
      comm.send(message, 1);
      message.fill_(7);  // behind the transfer
    } else if (comm.rank() == 1) {
      comm.recv(message, 0);
      require_equal((message + 1)[1].item<float>(), 1.F, "a message");
    }
    Tensor whole = torch::zeros({3, 2}, on);
    comm.all_gather_into(whole, torch::full({1, 2}, mine, on));
    require_equal((whole * 2).sum().item<float>(), 12.F, "pieces, in place");
    Tensor part = torch::zeros({1, 2}, on);
    comm.reduce_scatter_into(part, torch::full({3, 2}, mine, on));
    require_equal((part * 2)[0][1].item<float>(), 6.F, "a piece of the sum, in place");
    comm.barrier();
    const Tensor on_cpu = comm.all_gather(torch::full({1}, mine));
    require_equal(on_cpu.sum().item<float>(), 3.F, "what is on the CPU goes beside it");
  });
}

TEST_F(DeviceCommunicator, AddsContributionsAlongATreeOfAnyNumberOfRanks) {
  torch::manual_seed(4);
  const Tensor all = torch::randn({4, 100});
  std::vector<Tensor> sums;
  for (const int num_ranks : {1, 2, 4}) {
    Tensor sum;
    on_ranks(num_ranks, [&](const Communicator& comm, const at::TensorOptions& on) {
      std::vector<Tensor> mine;
      for (int i = 0; i < 4 / num_ranks; ++i) mine.push_back(all[comm.rank() * 4 / num_ranks + i].to(on.device()));
      const Tensor found = comm.all_reduce_contributions(mine).cpu();
      if (comm.rank() == 0) sum = found;
      if (num_ranks < 4) return;
      Tensor along_tree = mine.front().clone().view({10, 10}).t();
      comm.with_strategy(CommunicationStrategy::kTree).all_reduce(along_tree);
      require(torch::equal(along_tree.t().reshape(100).cpu(), found), "one contribution of each rank");
    });
    sums.push_back(sum);
  }
  EXPECT_TRUE(torch::equal(sums[1], sums[0]));
  EXPECT_TRUE(torch::equal(sums[2], sums[0]));
  EXPECT_TRUE(torch::equal(sums[0], (all[0] + all[1]) + (all[2] + all[3])));
}

TEST_F(DeviceCommunicator, LetsTheHostGoOn) {
  if (!tested::kSimulated) GTEST_SKIP() << "needs kernels that take as long as the test says";
  tested::kernels_take([](std::string_view op, auto) { return op == "ALLREDUCE" ? 100ms : 0ms; });
  on_ranks(2, [](const Communicator& comm, const at::TensorOptions& on) {
    Tensor sum = torch::ones({4}, on);
    const auto begin = std::chrono::steady_clock::now();
    Work work = comm.all_reduce_async(sum);
    require(!work.is_completed(), "the call is under way");
    work.wait();
    const Tensor doubled = sum * 2;
    require(std::chrono::steady_clock::now() - begin < 80ms, "the host goes on behind wait()");
    require_equal(doubled.sum().item<float>(), 16.F, "the sum");
  });
}

/// A record ends when the device is done, not when the host has gone on.
TEST_F(DeviceCommunicator, RecordsCallsUntilTheDeviceIsDone) {
  tested::kernels_take([](std::string_view op, auto) { return op == "ALLREDUCE" ? 200ms : 0ms; });
  on_ranks(2, [](const Communicator& comm, const at::TensorOptions& on) {
    Tensor sum = torch::ones({4}, on);
    comm.all_reduce(sum);
    const auto record = [&] { return comm.recent_calls().back(); };
    require_equal(record().operation, std::string("all_reduce"), "the call");
    if (tested::kSimulated) require(record().state == CallState::kStarted, "it is under way");
    tested::synchronise();
    for (int i = 0; i < 1000 && record().state == CallState::kStarted; ++i) std::this_thread::sleep_for(1ms);
    require(record().state == CallState::kDone, "it is done");
  });
}

TEST_F(DeviceCommunicator, KeepsTheTensorsOfCallsThatNobodyWaitsFor) {
  tested::kernels_take([](std::string_view op, auto) { return op == "ALLREDUCE" ? 50ms : 0ms; });
  on_ranks(2, [](const Communicator& comm, const at::TensorOptions& on) {
    {
      comm.all_reduce_async(torch::ones({4}, on));
    }
    torch::ones({4}, on);  // would tell of memory that was freed too early
  });
}

/// Nobody waits for the device before the ranks end.
TEST_F(DeviceCommunicator, KeepsThemWhenItsGroupEnds) {
  need_devices(2);
  tested::kernels_take([](std::string_view op, auto) { return op == "ALLREDUCE" ? 50ms : 0ms; });
  run_threads(2, [&](const World& world) {
    const at::Device device = world.device();
    {
      world.comm().all_reduce_async(torch::ones({4}, device));
    }
  });
  tested::synchronise();  // would tell of memory that was freed too early
}

/// Of a call that the program has waited for, the order of streams protects the memory: it is free for the next tensor
/// of the stream at once, though the device is not done, and the host is not held up.
TEST_F(DeviceCommunicator, LeavesTheMemoryOfCallsToTheProgram) {
  tested::kernels_take([](std::string_view op, auto) { return op == "_ALLGATHER_BASE" ? 50ms : 0ms; });
  on_ranks(2, [](const Communicator& comm, const at::TensorOptions& on) {
    const Tensor piece = torch::ones({1024}, on);
    const auto before = tested::bytes_in_use(on.device().index());
    Tensor whole = comm.all_gather(piece);
    require_equal(tested::bytes_in_use(on.device().index()), before + 8192, "what was gathered");
    whole.reset();
    require_equal(tested::bytes_in_use(on.device().index()), before, "free");
    if (tested::kSimulated) require(comm.recent_calls().back().state == CallState::kStarted, "though it is under way");
  });
}

/// NCCL's own clock ends the process; ours says which call of which rank.
TEST_F(DeviceCommunicator, TellsOfACallThatIsNotDoneInTime) {
  if (!tested::kSimulated) GTEST_SKIP() << "needs a backend that does not end the process when time is over";
  need_devices(2);
  const auto wait_for_nobody = [] {
    on_ranks(
        2,
        [](const Communicator& comm, const at::TensorOptions& on) {
          if (comm.rank() == 1) {
            std::this_thread::sleep_for(1500ms);
            return;
          }
          Tensor sum = torch::ones({4}, on);
          comm.all_reduce(sum);
          for (int i = 0; i < 100; ++i) {
            std::this_thread::sleep_for(20ms);
            comm.split({0}).barrier();
          }
        },
        WorldOptions().timeout(500ms));
  };
  expect_parts(message_of<CommError>(wait_for_nobody),
               {"all_reduce #1 of group world, called on rank 0 of 2 at ", "not done ", " after 500 ms"});
}

TEST_F(DeviceCommunicator, GivesEachRankADeviceOfItsOwn) {
  const int num_devices = tested::num_devices();
  run_threads(num_devices, [](const World& world) {
    require(world.device() == tested::device(world.rank()), "the device of its place on the node");
    const Tensor plain = torch::ones({2}, torch::Device(tested::kDevice));
    require_equal(static_cast<int>(plain.device().index()), world.rank(), "and where tensors lie by default");
  });
  const auto too_many = [&] { run_threads(num_devices + 1, [](const World& world) { world.device(); }); };
  expect_parts(message_of<ConfigError>(too_many), {"has " + std::to_string(num_devices + 1) + " ranks, and " +
                                                       std::to_string(num_devices) + " devices of type",
                                                   "start as many ranks"});
}

TEST_F(DeviceCommunicator, RefusesDevicesThatNothingCarries) {
  run_threads(1, [](const World& world) {
    const Tensor nowhere = torch::ones({2}, torch::TensorOptions(torch::kMeta));
    const auto call = [&] { world.comm().all_reduce(nowhere); };
    expect_parts(message_of<ConfigError>(call), {"nothing carries tensors on meta between ranks, as group world/meta"});
  });
}

}  // namespace
}  // namespace tessera::testing
