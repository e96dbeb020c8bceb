
#include <tessera/disk/checksum.h>
#include <tessera/disk/streaming_copy.h>

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "disk/kernels.h"

namespace tessera::disk {
namespace {

std::vector<std::byte> bytes_of(std::size_t length) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < length; ++i) bytes.push_back(static_cast<std::byte>(i * i * 131 + i * 7 + 3));
  return bytes;
}

std::vector<std::pair<std::string, const Kernels*>> kernels_of_this_machine() {
  std::vector<std::pair<std::string, const Kernels*>> kernels{{"portable", &kPortableKernels}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) kernels.emplace_back("AVX2", &kAvx2Kernels);
  if (__builtin_cpu_supports("avx512f") != 0) kernels.emplace_back("AVX-512", &kAvx512Kernels);
#endif
  return kernels;
}

// Around every length at which it is done differently, and with every kind of alignment.
TEST(StreamingCopy, CopiesThatAndNothingElse) {
  const std::vector<std::byte> source = bytes_of(200'000);
  constexpr std::byte kUntouched{0xEE};
  for (const auto& [name, kernels] : kernels_of_this_machine()) {
    for (const std::size_t length : {0U, 1U, 63U, 64U, 16'383U, 16'384U, 16'385U, 1'023U, 1'024U, 65'536U, 100'003U}) {
      for (const std::size_t shift : {0U, 1U, 16U, 63U}) {
        std::vector<std::byte> target(length + 256, kUntouched);
        std::vector<std::byte> expected = target;
        std::copy_n(source.begin() + 5, length, expected.begin() + static_cast<std::ptrdiff_t>(64 + shift));
        kernels->copy(target.data() + 64 + shift, source.data() + 5, length);
        EXPECT_EQ(target, expected) << name << ", " << length << " bytes, shifted by " << shift;

        std::vector<std::byte> summed(length + 256, kUntouched);
        const std::uint64_t sum = kernels->copy_and_sum(summed.data() + 64 + shift, source.data() + 5, length);
        EXPECT_EQ(summed, expected) << name << ", " << length << " bytes, shifted by " << shift;
        EXPECT_EQ(sum, kPortableKernels.checksum(source.data() + 5, length)) << name << ", " << length << " bytes";
      }
    }
  }
}

TEST(StreamingCopy, TakesAnyLength) {
  const std::vector<std::byte> source = bytes_of(200'000);
  for (const std::size_t length : {0U, 5U, 65'535U, 65'536U, 200'000U}) {
    std::vector<std::byte> target(length);
    streaming_copy(std::span(source).first(length), target.data());
    EXPECT_TRUE(std::equal(target.begin(), target.end(), source.begin())) << length;
    std::vector<std::byte> summed(length);
    EXPECT_EQ(streaming_copy_and_sum(std::span(source).first(length), summed.data()), checksum_of(target)) << length;
    EXPECT_EQ(summed, target) << length;
  }
}

}  // namespace
}  // namespace tessera::disk
