#include "offload/store/budget.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "support/error_message.h"

namespace tessera::offload {
namespace {

using tessera::testing::expect_parts;
using tessera::testing::message_of;

TEST(Budget, CountsWhatIsTakenUntilItIsGivenBack) {
  const auto budget = Budget::make("host memory", "host_bytes", 100);
  {
    const Budget::Share share = budget->take(60, Kind::kStates, "states");
    EXPECT_EQ(budget->used_bytes(), 60U);
    EXPECT_EQ(budget->used_bytes(Kind::kStates), 60U);
    EXPECT_EQ(budget->free_bytes(), 40U);
    EXPECT_FALSE(budget->try_take(41, Kind::kBuffers));
    EXPECT_TRUE(budget->try_take(40, Kind::kBuffers));
  }
  EXPECT_EQ(budget->used_bytes(), 0U);
  EXPECT_EQ(budget->peak_bytes(), 100U);
}

TEST(Budget, SaysWhatThereIsOfEachKindWhenItIsFull) {
  const auto budget = Budget::make("host memory", "host_bytes", 4096);
  const Budget::Share states = budget->take(2048, Kind::kStates, "states");
  const Budget::Share parameters = budget->take(1024, Kind::kParameters, "parameters");
  const auto refused = [&] { static_cast<void>(budget->take(1025, Kind::kBuffers, "the parameters of blocks.3")); };
  expect_parts(message_of<StorageError>(refused),
               {"1.00 KiB for the parameters of blocks.3", "host memory: 3.00 KiB of 4.00 KiB", "(host_bytes)",
                "parameters 1.00 KiB", "optimizer state 2.00 KiB", "Raise host_bytes"});
  EXPECT_EQ(budget->used_bytes(), 3072U) << "nothing was taken";
}

TEST(Budget, OfAPartCountsInTheWholeToo) {
  const auto whole = Budget::make("all host memory", "host_max_bytes", 100);
  const auto part = Budget::make("host memory", "host_bytes", 80, whole);
  const Budget::Share other = whole->take(50, Kind::kBuffers, "buffers");
  EXPECT_EQ(part->free_bytes(), 50U);
  expect_parts(message_of<StorageError>([&] { static_cast<void>(part->take(60, Kind::kStates, "states")); }),
               {"all host memory", "host_max_bytes"});
  EXPECT_EQ(part->used_bytes(), 0U) << "nothing stays counted in the part";
  const Budget::Share share = part->take(50, Kind::kStates, "states");
  EXPECT_EQ(whole->used_bytes(), 100U);
}

TEST(Budget, IsNeverExceededByThreads) {
  constexpr std::uint64_t kLimit = 1000;
  const auto whole = Budget::make("all", "all_bytes", kLimit);
  const auto part = Budget::make("part", "part_bytes", kLimit - 100, whole);
  std::vector<std::thread> threads;
  std::atomic<int> num_taken = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<Budget::Share> held;
      for (int i = 0; i < 5000; ++i) {
        auto share = (random() % 2 == 0 ? whole : part)->try_take(random() % 200, Kind::kBuffers);
        if (share) {
          held.push_back(std::move(*share));
          ++num_taken;
        } else {
          held.clear();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(num_taken, 1000);
  EXPECT_LE(whole->peak_bytes(), kLimit);
  EXPECT_LE(part->peak_bytes(), kLimit - 100);
  EXPECT_EQ(whole->used_bytes(), 0U);
  EXPECT_EQ(part->used_bytes(), 0U);
}

TEST(Budget, WritesBytesAsPeopleReadThem) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 30), "3.00 GiB");
}

}  // namespace
}  // namespace tessera::offload
