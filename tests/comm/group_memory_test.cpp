#include <tessera/comm/group_memory.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/error_message.h"
#include "support/require.h"

namespace tessera {
namespace {

using testing::require;

using testing::require_equal;

TEST(GroupMemory, ShowsEveryRankWhatOneWrites) {
  run_threads(3, [](const World& world) {
    const auto memory = GroupMemory::make(world.comm(), 10);
    require(memory.has_value(), "no memory");
    require_equal(memory->num_bytes(), 10, "its bytes");
    memory->data()[world.rank()] = static_cast<std::byte>(world.rank() + 1);
    world.comm().barrier();
    for (int rank = 0; rank < 3; ++rank) {
      require_equal(memory->data()[rank], static_cast<std::byte>(rank + 1), "another's byte is missing");
    }
  });
}

TEST(GroupMemory, OutlivesTheRankThatMadeIt) {
  run_threads(2, [](const World& world) {
    auto memory = GroupMemory::make(world.comm(), 1 << 20);
    if (world.rank() == 0) memory->data()[5] = std::byte{7};
    world.comm().barrier();
    if (world.rank() == 0) memory.reset();
    const auto second = GroupMemory::make(world.comm(), 1 << 20);
    if (world.rank() == 0) second->data()[5] = std::byte{9};
    world.comm().barrier();
    if (world.rank() == 1) require_equal(memory->data()[5], std::byte{7}, "the first memory was given away");
  });
}

TEST(GroupMemory, IsOfOneRankAlone) {
  run_threads(1, [](const World& world) {
    const auto memory = GroupMemory::make(world.comm(), 100);
    require(memory.has_value(), "no memory");
    require_equal(memory->data()[99], std::byte{0}, "memory is zeroed");
  });
}

// Rank 0 makes it: the others must not wait for what it could not make.
TEST(GroupMemory, ThatCannotBeMadeIsRefusedOnEveryRankAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  run_threads(3, [](const World& world) {
    EXPECT_THROW(GroupMemory::make(world.comm(), std::size_t{1} << 60), Error) << "rank " << world.rank();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

TEST(Fences, LetARankGoOnWhenAllHaveReachedThem) {
  run_threads(4, [](const World& world) {
    const auto memory = GroupMemory::make(world.comm(), 4 * sizeof(int));
    const auto fences = Fences::make(world.comm(), 2);
    auto* const numbers = reinterpret_cast<int*>(memory->data());
    for (int round = 1; round <= 100; ++round) {
      numbers[world.rank()] = round;
      fences->reach(0, static_cast<std::uint32_t>(round));
      fences->await_all(0, static_cast<std::uint32_t>(round), [] { return std::string("numbers"); });
      for (int rank = 0; rank < 4; ++rank) require_equal(numbers[rank], round, "a rank was not waited for");
      fences->reach(1, static_cast<std::uint32_t>(round));
      fences->await_all(1, static_cast<std::uint32_t>(round), [] { return std::string("readers"); });
    }
  });
}

TEST(Fences, NameWhoIsMissing) {
  run_threads(2, [](const World& world) {
    const auto hurried = world.comm().with_timeout(std::chrono::milliseconds(200));
    const auto fences = Fences::make(hurried, 1);
    if (world.rank() == 0) {
      const std::string message = testing::message_of<CommError>(
          [&] { fences->await_all(0, 1, [] { return std::string("parameters of \"head\""); }); });
      require(message.find("parameters of \"head\" (rank 0 waits for rank 0)") != std::string::npos, message);
      fences->reach(0, 1);
      const std::string other = testing::message_of<CommError>(
          [&] { fences->await_all(0, 1, [] { return std::string("parameters of \"head\""); }); });
      require(other.find("(rank 0 waits for rank 1)") != std::string::npos, other);
    }
    world.comm().barrier();
  });
}

}  // namespace
}  // namespace tessera
