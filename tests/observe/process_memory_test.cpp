#include "observe/summariser.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace tessera::observe {
namespace {

TEST(ProcessMemory, GrowsAndShrinksWithWhatIsTouched) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const ProcessMemory before = process_memory();
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const ProcessMemory with = process_memory();
  munmap(memory, kBytes);
  const ProcessMemory after = process_memory();
  constexpr std::int64_t kSlack = std::int64_t{8} << 20;
  // Not more precisely: a sanitizer keeps notes of touched memory, which are memory too.
  EXPECT_GE(with.resident_bytes - before.resident_bytes, kBytes - kSlack);
  EXPECT_LE(after.resident_bytes, with.resident_bytes - kBytes + kSlack);
  EXPECT_GE(after.peak_bytes, with.resident_bytes - kSlack);
}

}  // namespace
}  // namespace tessera::observe
