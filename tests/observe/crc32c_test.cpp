#include "observe/event_file.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::observe {
namespace {

TEST(Crc32c, EqualsThePublishedValues) {
  // RFC 3720, appendix B.4, and the usual check value.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, IsMaskedByRotationAndAddition) {
  const std::uint32_t crc = crc32c("123456789");
  const std::uint32_t unmasked = masked_crc32c("123456789") - 0xa282ead8U;
  EXPECT_EQ((unmasked << 15) | (unmasked >> 17), crc);
}

}  // namespace
}  // namespace tessera::observe
