#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "intercept/other_allocator.h"
#include "support/error_message.h"

namespace tessera::intercept {
namespace {

TEST(MemoryCount, CountsWhatLivesAndTheMostThatLived) {
  MemoryCount memory;
  at::Tensor a = at::empty({1000}, at::kDouble);
  EXPECT_EQ(memory.live_bytes(), 8000);
  {
    const at::Tensor b = at::empty({500}, at::kFloat);
  }
  EXPECT_EQ(memory.live_bytes(), 8000);
  EXPECT_EQ(memory.peak_bytes(), 10000);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), 8000);
  a.reset();
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(MemoryCount, CountsMemoryAndNotViewsOfIt) {
  const MemoryCount memory;
  const at::Tensor a = at::zeros({10, 10}, at::kFloat);
  const at::Tensor view = a.t().narrow(0, 1, 3);
  EXPECT_EQ(memory.live_bytes(), 400);
  EXPECT_EQ(view.contiguous().sum().item<float>(), 0);
}

TEST(MemoryCount, LeavesOutWhatWasThereBefore) {
  at::Tensor before = at::empty({100}, at::kDouble);
  const MemoryCount memory;
  before.reset();
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(MemoryCount, FollowsATensorThatGrows) {
  const MemoryCount memory;
  at::Tensor a = at::empty({10}, at::kDouble);
  a.resize_({100});
  EXPECT_EQ(memory.live_bytes(), 800);
}

TEST(MemoryCount, SeesOtherThreads) {
  const MemoryCount memory;
  at::Tensor made;
  std::thread([&made] { made = at::empty({10}, at::kDouble); }).join();
  EXPECT_EQ(memory.live_bytes(), 80);
}

TEST(MemoryCount, LetsTensorsOutliveIt) {
  at::Tensor kept;
  {
    const MemoryCount memory;
    kept = at::ones({10}, at::kDouble);
  }
  EXPECT_EQ(kept.sum().item<double>(), 10);
  kept.resize_({20}).fill_(1);
  EXPECT_EQ(kept.sum().item<double>(), 20);
  const MemoryCount next;
  kept.reset();
  EXPECT_EQ(next.live_bytes(), 0) << "it was counted elsewhere";
}

TEST(MemoryCount, IsTheOnlyOne) {
  const MemoryCount memory;
  testing::expect_parts(testing::message_of<ConfigError>([] { const MemoryCount second; }),
                        {"there can be one MemoryCount"});
}

TEST(MemoryCount, RefusesAnotherAllocator) {
  std::string text;
  {
    const OtherAllocator other;
    text = testing::message_of<ConfigError>([] { const MemoryCount refused; });
  }
  testing::expect_parts(text, {"something has replaced LibTorch's CPU allocator"});
  const MemoryCount memory;
  const at::Tensor made = at::empty({10}, at::kDouble);
  EXPECT_EQ(memory.live_bytes(), 80);
}

}  // namespace
}  // namespace tessera::intercept
