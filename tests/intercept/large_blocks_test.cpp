// For the whole process and for good: the other tests of this program run with it, or before it.
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/memory_count.h>
#include <tessera/intercept/thread_memory.h>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "intercept/other_allocator.h"

namespace tessera::intercept {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

std::size_t used() { return large_block_bytes().used; }

TEST(LargeBlocks, HoldLargeTensorsAndNoSmallOnes) {
  ASSERT_TRUE(keep_large_blocks_apart());
  ASSERT_TRUE(keep_large_blocks_apart());  // twice is as once
  const std::size_t before = used();
  {
    const at::Tensor small = at::ones({1000});
    EXPECT_EQ(used(), before);
    const at::Tensor large = at::ones({kMib});
    EXPECT_EQ(used(), before + 4 * kMib);
    EXPECT_EQ(large.sum().item<float>(), static_cast<float>(kMib));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data_ptr()) % 64, 0U);
  }
  EXPECT_EQ(used(), before);
}

// Blocks from before, and those that LibTorch's parts take and free by pointer alone, whoever allocates then.
TEST(LargeBlocks, AreFreedByWhoeverIsAsked) {
  auto* const usual = c10::GetDefaultCPUAllocator();
  void* const from_before = usual->raw_allocate(2 * kMib);
  ASSERT_TRUE(keep_large_blocks_apart());
  const std::size_t before = used();
  c10::Allocator* const present = c10::GetCPUAllocator();
  present->raw_deallocate(from_before);
  void* const large = present->raw_allocate(2 * kMib);
  void* const small = present->raw_allocate(100);
  EXPECT_EQ(used(), before + 2 * kMib);
  const MemoryCount memory;
  ASSERT_NE(c10::GetCPUAllocator(), present);
  c10::GetCPUAllocator()->raw_deallocate(large);
  c10::GetCPUAllocator()->raw_deallocate(small);
  EXPECT_EQ(used(), before);
}

TEST(LargeBlocks, AreCountedAsOthersAre) {
  ASSERT_TRUE(keep_large_blocks_apart());
  at::Tensor kept;
  {
    const MemoryCount memory;
    ASSERT_TRUE(keep_large_blocks_apart());
    kept = at::ones({kMib});
    const at::Tensor small = at::ones({10});
    EXPECT_EQ(memory.live_bytes(), 4 * kMib + 40);
  }
  const std::size_t with_kept = used();
  kept.reset();
  EXPECT_EQ(used(), with_kept - 4 * kMib);
  const at::Tensor after = at::ones({kMib});
  EXPECT_EQ(used(), with_kept);
}

// What glibc before 2.38 does not: gradients that come and go beside what stays leave no holes.
TEST(LargeBlocks, LeaveNoHolesBehindWhatComesAndGoes) {
  ASSERT_TRUE(keep_large_blocks_apart());
  const LargeBlockBytes before = large_block_bytes();
  std::vector<at::Tensor> small_ones;
  for (int i = 0; i < 50; ++i) {
    const at::Tensor gradient = at::ones({4 * kMib});
    for (int j = 0; j < 10; ++j) small_ones.push_back(at::ones({12}));
  }
  const LargeBlockBytes after = large_block_bytes();
  EXPECT_EQ(after.used, before.used);
  EXPECT_LE(after.spare, before.spare + 16 * kMib);
}

TEST(LargeBlocks, AreForEveryThread) {
  ASSERT_TRUE(keep_large_blocks_apart());
  const std::size_t before = used();
  std::vector<std::thread> threads;
  std::vector<at::Tensor> made(4);
  for (std::size_t i = 0; i < made.size(); ++i) {
    threads.emplace_back([&made, i] {
      for (int round = 0; round < 200; ++round) {
        made[i] = at::full({kMib / 2 + round * 1000}, static_cast<float>(i));
        if (made[i][-1].item<float>() != static_cast<float>(i)) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_TRUE(made[i].eq(static_cast<float>(i)).all().item<bool>());
  }
  made.clear();
  EXPECT_EQ(used(), before);
}

TEST(LargeBlocks, AreLeftToWhoHasReplacedTheAllocator) {
  const OtherAllocator other;
  EXPECT_FALSE(keep_large_blocks_apart());
  EXPECT_EQ(c10::GetCPUAllocator(), &other);
}

TEST(LargeBlocks, AreNoneWhereThereIsNoMemory) {
  EXPECT_EQ(large_block(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(why_no_memory(100), "");
}

}  // namespace
}  // namespace tessera::intercept
