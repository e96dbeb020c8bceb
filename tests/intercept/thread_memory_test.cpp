#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>
#include <tessera/intercept/thread_memory.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/error_message.h"

namespace tessera::intercept {
namespace {

at::Tensor of_bytes(std::int64_t num_bytes) { return at::empty({num_bytes}, at::kByte); }

TEST(ThreadMemory, CountsItsOwnThreadOnly) {
  const ThreadMemory memory;
  std::int64_t of_other = 0;
  at::Tensor made;
  std::thread([&] {
    const ThreadMemory other;
    made = of_bytes(1000);
    of_other = other.live().all();
  }).join();
  const at::Tensor own = of_bytes(500);
  EXPECT_EQ(of_other, 1000);
  EXPECT_EQ(memory.live().all(), 500);
}

TEST(ThreadMemory, SeesWhatOtherThreadsFree) {
  const ThreadMemory memory;
  at::Tensor made = of_bytes(1000);
  std::thread([moved = std::move(made)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(memory.live().all(), 0);
  EXPECT_EQ(memory.peak_of_all(), 1000);
}

TEST(ThreadMemory, TellsKindsApart) {
  ThreadMemory memory;
  const at::Tensor activation = of_bytes(100);
  at::Tensor gradient;
  {
    const ThreadMemory::Scope scope(memory, MemoryKind::kGradients);
    gradient = of_bytes(200);
  }
  const at::Tensor another = of_bytes(30);
  EXPECT_EQ(memory.live().of(MemoryKind::kActivations), 130);
  EXPECT_EQ(memory.live().of(MemoryKind::kGradients), 200);
  memory.move(another.narrow(0, 3, 4), MemoryKind::kGradients);
  EXPECT_EQ(memory.live().of(MemoryKind::kGradients), 230);
  gradient.reset();
  EXPECT_EQ(memory.live().of(MemoryKind::kGradients), 30);
  EXPECT_EQ(memory.peaks().of(MemoryKind::kGradients), 230);
}

TEST(ThreadMemory, MovesWhatWasMarkedAndStillLives) {
  ThreadMemory memory;
  const at::Tensor before = of_bytes(1);
  memory.start_marking();
  at::Tensor state = of_bytes(10);
  of_bytes(5000);
  memory.move_marked(MemoryKind::kOptimizer);
  const at::Tensor after = of_bytes(100);
  memory.stop_marking();
  memory.move_marked(MemoryKind::kOptimizer);
  EXPECT_EQ(memory.live().of(MemoryKind::kOptimizer), 10);
  EXPECT_EQ(memory.live().of(MemoryKind::kActivations), 101);
  state.reset();
  EXPECT_EQ(memory.live().of(MemoryKind::kOptimizer), 0);
}

TEST(ThreadMemory, AddsMemoryFromElsewhere) {
  ThreadMemory memory;
  memory.add(MemoryKind::kGathered, 1000);
  memory.reset_peaks();
  memory.add(MemoryKind::kGathered, 500);
  memory.add(MemoryKind::kGathered, -1500);
  EXPECT_EQ(memory.live().of(MemoryKind::kGathered), 0);
  EXPECT_EQ(memory.peaks().of(MemoryKind::kGathered), 1500);
}

TEST(ThreadMemory, LivesBesideACountOfTheProcess) {
  std::optional<MemoryCount> process(std::in_place);
  std::optional<ThreadMemory> thread(std::in_place);
  at::Tensor made = of_bytes(100);
  EXPECT_EQ(process->live_bytes(), 100);
  process.reset();
  const at::Tensor second = of_bytes(10);
  EXPECT_EQ(thread->live().all(), 110);
  testing::expect_parts(testing::message_of<ConfigError>([] { const ThreadMemory again; }),
                        {"the memory of this thread's tensors is counted already"});
  thread.reset();
  made.reset();
  const ThreadMemory next;
  EXPECT_EQ(next.live().all(), 0);
}

}  // namespace
}  // namespace tessera::intercept
