#include "comm/host/arena.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "support/error_message.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBegin = 8 * kPage;  // an arena need not begin where its file does

/// An anonymous file with an arena in it.
class ArenaFile {
 public:
  explicit ArenaFile(std::size_t num_bytes)
      : num_bytes_(kBegin + num_bytes),
        fd_(memfd_create("arena_test", MFD_CLOEXEC)),
        base_(map()),
        arena(fd_, base_ + kBegin, kBegin, num_bytes) {}
  ~ArenaFile() {
    munmap(base_, num_bytes_);
    close(fd_);
  }
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;

  /// What the system really holds.
  std::size_t resident_bytes() const {
    struct stat status{};
    fstat(fd_, &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  }
  std::byte* begin() const { return base_ + kBegin; }

 private:
  std::byte* map() const {
    if (ftruncate(fd_, static_cast<off_t>(num_bytes_)) != 0) throw StorageError("ftruncate");
    return static_cast<std::byte*>(mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
  }

  std::size_t num_bytes_;
  int fd_;
  std::byte* base_;

 public:
  Arena arena;
};

TEST(Arena, ReservesPagesAndReturnsThemToTheSystem) {
  ArenaFile file(64 * kPage);
  EXPECT_EQ(file.resident_bytes(), 0U);
  std::byte* memory = file.arena.allocate(10 * kPage);
  EXPECT_EQ(file.resident_bytes(), 10 * kPage) << "reserved before the first touch";
  std::memset(memory, 1, 10 * kPage);
  EXPECT_EQ(file.arena.used_bytes(), 10 * kPage);
  file.arena.free(memory);
  EXPECT_EQ(file.resident_bytes(), 0U);
  EXPECT_EQ(file.arena.used_bytes(), 0U);
}

TEST(Arena, KeepsTheNeighboursOfWhatItFrees) {
  ArenaFile file(64 * kPage);
  std::byte* first = file.arena.allocate(kPage);
  std::byte* second = file.arena.allocate(3 * kPage);
  std::byte* third = file.arena.allocate(kPage);
  std::memset(first, 1, kPage);
  std::memset(second, 2, 3 * kPage);
  std::memset(third, 3, kPage);
  file.arena.free(second);
  EXPECT_EQ(file.resident_bytes(), 2 * kPage);
  EXPECT_EQ(first[kPage - 1], std::byte{1});
  EXPECT_EQ(third[0], std::byte{3});
}

TEST(Arena, HandsOutZeroesAgain) {
  ArenaFile file(4 * kPage);
  std::byte* memory = file.arena.allocate(kPage);
  std::memset(memory, 7, kPage);
  file.arena.free(memory);
  EXPECT_EQ(file.arena.allocate(kPage), memory) << "the place is used again";
  EXPECT_EQ(memory[100], std::byte{0});
}

TEST(Arena, RoundsUpToWholePages) {
  ArenaFile file(16 * kPage);
  file.arena.allocate(1);
  file.arena.allocate(0);
  file.arena.allocate(kPage + 1);
  EXPECT_EQ(file.arena.used_bytes(), 4 * kPage);
}

TEST(Arena, JoinsFreedNeighboursInAnyOrder) {
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}};
  for (const auto& order : orders) {
    ArenaFile file(16 * kPage);
    std::vector<std::byte*> parts;
    for (int i = 0; i < 4; ++i) parts.push_back(file.arena.allocate(4 * kPage));
    for (const int i : order) file.arena.free(parts[static_cast<std::size_t>(i)]);
    EXPECT_EQ(file.arena.allocate(16 * kPage), file.begin()) << "the whole is in one piece again";
  }
}

TEST(Arena, TellsTheSizesWhenItIsFull) {
  ArenaFile file(8 * kPage);
  file.arena.allocate(6 * kPage);
  const auto message = testing::message_of<StorageError>([&] { file.arena.allocate(3 * kPage); });
  testing::expect_parts(message, {std::to_string(3 * kPage), std::to_string(6 * kPage), std::to_string(8 * kPage)});
  EXPECT_EQ(file.arena.used_bytes(), 6 * kPage) << "the failed request took nothing";
  EXPECT_NE(file.arena.allocate(2 * kPage), nullptr);
}

TEST(Arena, AlignsLargeRangesForHugePages) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  ArenaFile file(8 * kHuge);
  std::byte* small = file.arena.allocate(kPage);
  std::byte* large = file.arena.allocate(kHuge);
  EXPECT_EQ(static_cast<std::size_t>(large - file.begin()) % kHuge, 0U);
  file.arena.free(small);
  file.arena.free(large);
  EXPECT_EQ(file.resident_bytes(), 0U);
  EXPECT_EQ(file.arena.allocate(8 * kHuge), file.begin()) << "the gap before the large range was not lost";
}

TEST(Arena, IgnoresWhatItDidNotHandOut) {
  ArenaFile file(8 * kPage);
  std::byte* memory = file.arena.allocate(2 * kPage);
  file.arena.free(memory + kPage);
  file.arena.free(memory);
  file.arena.free(memory);
  EXPECT_EQ(file.arena.used_bytes(), 0U);
}

TEST(Arena, NeverHandsOutOneByteTwice) {
  ArenaFile file(256 * kPage);
  std::mt19937 random(3);
  struct Held {
    std::byte* memory;
    std::size_t num_bytes;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int step = 0; step < 3000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const std::size_t num_bytes = 1 + random() % (20 * kPage);
      try {
        const auto mark = static_cast<std::byte>(step);
        held.push_back({file.arena.allocate(num_bytes), num_bytes, mark});
        std::memset(held.back().memory, static_cast<int>(mark), num_bytes);
      } catch (const StorageError&) {
        // Full: let the next steps free some.
      }
      continue;
    }
    const std::size_t i = random() % held.size();
    const Held& one = held[i];
    ASSERT_EQ(one.memory[0], one.mark);
    ASSERT_EQ(one.memory[one.num_bytes - 1], one.mark);
    file.arena.free(one.memory);
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (const Held& one : held) file.arena.free(one.memory);
  EXPECT_EQ(file.resident_bytes(), 0U);
  EXPECT_EQ(file.arena.allocate(256 * kPage), file.begin());
}

}  // namespace
}  // namespace tessera::comm
