
#include <tessera/disk/checksum.h>

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "disk/kernels.h"

namespace tessera {
namespace {

std::uint64_t checksum_of_text(const std::string& text) { return checksum_of(std::as_bytes(std::span(text))); }

/// Bytes of a formula.
std::string text_of_length(std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(i * i * 131 + i * 7 + 3);
  return text;
}

// The numbers are what the Python package xxhash says.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum_text(checksum_of_text("")), "2d06800538d394c2");
  EXPECT_EQ(checksum_text(checksum_of_text("abc")), "78af5f94892f3950");
  EXPECT_EQ(checksum_text(checksum_of_text(std::string(1000000, 'x'))), "ef02eeb2d3625399");
  EXPECT_EQ(root_checksum_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(root_checksum_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Checksum, IsWrittenWithAllDigits) {
  EXPECT_EQ(checksum_text(0), "0000000000000000");
  EXPECT_EQ(checksum_text(0x0123456789abcdef), "0123456789abcdef");
  EXPECT_EQ(checksum_text(~std::uint64_t{0}), "ffffffffffffffff");
}

TEST(Checksum, IsTheSameInPieces) {
  const std::string text = text_of_length(100'003);
  for (const std::size_t piece : {1U, 63U, 256U, 4096U, 100'003U}) {
    RunningChecksum running;
    for (std::size_t begin = 0; begin < text.size(); begin += piece) {
      const std::string part = text.substr(begin, piece);
      running.add(std::as_bytes(std::span(part)));
    }
    EXPECT_EQ(running.value(), checksum_of_text(text)) << piece;
  }
}

// Lengths around every border at which XXH3 computes differently.
TEST(Checksum, IsTheSameOnEveryProcessor) {
  const std::string text = text_of_length(70'000);
  for (const std::size_t length : {0U, 1U, 3U, 4U, 8U, 9U, 16U, 17U, 128U, 129U, 240U, 241U, 1024U, 1025U, 70'000U}) {
    for (const std::size_t start : {0U, 1U}) {
      const std::string part = text.substr(start, length);
      const std::uint64_t expected = disk::kPortableKernels.checksum(part.data(), part.size());
      EXPECT_EQ(checksum_of_text(part), expected) << length;
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2") != 0) {
        EXPECT_EQ(disk::kAvx2Kernels.checksum(part.data(), part.size()), expected) << length;
      }
#endif
    }
  }
}

}  // namespace
}  // namespace tessera
