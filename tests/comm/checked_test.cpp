#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The error of each of three ranks when rank 1 alone runs `odd`.
void expect_refusal(const std::function<void(const Communicator&)>& usual,
                    const std::function<void(const Communicator&)>& odd, const std::string& odd_call) {
  std::mutex mutex;
  int num_notified = 0;
  run_threads(
      3,
      [&](const World& world) {
        try {
          (world.rank() == 1 ? odd : usual)(world.comm());
          ADD_FAILURE() << "rank " << world.rank() << " noticed nothing";
        } catch (const ConfigError& error) {
          const std::lock_guard lock(mutex);
          ++num_notified;
          EXPECT_THAT(error.what(), AllOf(HasSubstr("the odd one out is rank 1"), HasSubstr("rank 1 calls " + odd_call),
                                          HasSubstr("checked_test.cpp")));
        }
      },
      WorldOptions().checked(true));
  EXPECT_EQ(num_notified, 3);
}

void sum(const Communicator& comm) { comm.all_reduce(at::ones({4})); }

TEST(CheckedMode, NamesTheRankThatCallsAnotherOperation) {
  expect_refusal(&sum, [](const Communicator& comm) { comm.broadcast(at::ones({4}), 0); }, "broadcast Float [4]");
}

TEST(CheckedMode, NamesTheRankWithAnotherShape) {
  expect_refusal(&sum, [](const Communicator& comm) { comm.all_reduce(at::ones({5})); }, "all_reduce Float [5]");
}

TEST(CheckedMode, NamesTheRankWithAnotherDtype) {
  expect_refusal(
      &sum, [](const Communicator& comm) { comm.all_reduce(at::ones({4}, at::kDouble)); }, "all_reduce Double [4]");
}

TEST(CheckedMode, NamesTheRankThatSkippedACall) {
  expect_refusal(
      [](const Communicator& comm) {
        comm.all_reduce(at::ones({4}));
        comm.barrier();
      },
      [](const Communicator& comm) { comm.barrier(); }, "barrier");
}

TEST(CheckedMode, LetsEqualCallsPass) {
  run_threads(
      3,
      [](const World& world) {
        const Communicator& comm = world.comm();
        at::Tensor tensor = at::ones({4});
        Work work = comm.all_reduce_async(tensor);
        comm.all_gather(at::ones({world.rank() + 1}), 0, {1, 2, 3});
        work.wait();
        EXPECT_EQ(tensor[0].item<float>(), 3);
        comm.scatter(at::ones({3}), 0);
        if (world.rank() < 2) comm.split({0, 1}).barrier();
        if (world.rank() == 0) comm.send(tensor, 1);
        if (world.rank() == 1) comm.recv(tensor, 0);
        comm.barrier();
      },
      WorldOptions().checked(true));
}

}  // namespace
}  // namespace tessera
