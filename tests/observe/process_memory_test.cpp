#include "observe/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace tessera::observe {
namespace {

TEST(ProcessMemory, GrowsAndShrinksWithWhatIsTouched) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const ProcessMemory before = process_memory();
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const ProcessMemory with = process_memory();
  munmap(memory, kBytes);
  const ProcessMemory after = process_memory();
  constexpr std::int64_t kSlack = std::int64_t{8} << 20;
  EXPECT_NEAR(with.resident_bytes - before.resident_bytes, kBytes, kSlack);
  EXPECT_NEAR(after.resident_bytes, before.resident_bytes, kSlack);
  EXPECT_GE(after.peak_bytes, with.resident_bytes - kSlack);
}

}  // namespace
}  // namespace tessera::observe
