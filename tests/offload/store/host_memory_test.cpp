#include "offload/store/host_memory.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <utility>

#include "support/error_message.h"

namespace tessera::offload {
namespace {

using tessera::testing::expect_parts;
using tessera::testing::message_of;

constexpr std::size_t kPage = 4096;

TEST(HostMemory, CountsWholePagesForAsLongAsSomebodyHoldsThem) {
  const auto budget = Budget::make("host memory", "host_bytes", 4 * kPage);
  const auto memory = HostMemory::make(budget, kPage);
  auto first = memory->take(kPage + 1, Kind::kStates, "states");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.get()) % kPage, 0U);
  EXPECT_EQ(budget->used_bytes(Kind::kStates), 2 * kPage);
  EXPECT_EQ(memory->try_take(3 * kPage, Kind::kBuffers), nullptr);
  first.reset();
  EXPECT_EQ(budget->used_bytes(Kind::kStates), 0U);
  EXPECT_EQ(budget->used_bytes(Kind::kBuffers), 2 * kPage) << "kept for the next of its size";
  EXPECT_NE(memory->try_take(4 * kPage, Kind::kBuffers), nullptr) << "until somebody needs the room";
}

TEST(HostMemory, GivesMemoryThatIsKeptToTheNextOfItsSize) {
  const auto memory = HostMemory::make(Budget::make("host memory", "host_bytes", 8 * kPage), kPage);
  auto first = memory->take(2 * kPage, Kind::kStates, "states");
  const std::byte* const bytes = first.get();
  first.reset();
  EXPECT_EQ(memory->take(2 * kPage, Kind::kParameters, "parameters").get(), bytes);
  EXPECT_EQ(memory->budget().used_bytes(), 2 * kPage);
}

TEST(HostMemory, DropsWhatIsThereOnlyBecauseThereWasRoom) {
  const auto memory = HostMemory::make(Budget::make("host memory", "host_bytes", 4 * kPage), kPage);
  auto copy = memory->take(3 * kPage, Kind::kBuffers, "a copy");
  memory->set_drop_one([&] { return std::exchange(copy, nullptr) != nullptr; });
  EXPECT_NE(memory->take(2 * kPage, Kind::kStates, "states"), nullptr);
  EXPECT_EQ(copy, nullptr);
  EXPECT_EQ(memory->budget().used_bytes(), 2 * kPage);
}

TEST(HostMemory, SaysWhatThereIsWhenNothingMayGo) {
  const auto memory = HostMemory::make(Budget::make("host memory", "host_bytes", 4 * kPage), kPage);
  const auto states = memory->take(3 * kPage, Kind::kStates, "states");
  expect_parts(message_of<StorageError>([&] { memory->take(2 * kPage, Kind::kBuffers, "the parameters of x"); }),
               {"8.00 KiB for the parameters of x", "optimizer state 12.00 KiB"});
}

TEST(HostMemory, SaysWhenTheSystemHasNone) {
  constexpr std::uint64_t kMoreThanAddresses = std::uint64_t{1} << 48;
  const auto memory = HostMemory::make(Budget::make("host memory", "host_bytes", 2 * kMoreThanAddresses), kPage);
  expect_parts(message_of<StorageError>([&] { memory->take(kMoreThanAddresses, Kind::kStates, "states"); }),
               {"offload: the system has no 256.00 TiB of memory", "offload more to files"});
  EXPECT_EQ(memory->budget().used_bytes(), 0U);
}

}  // namespace
}  // namespace tessera::offload
