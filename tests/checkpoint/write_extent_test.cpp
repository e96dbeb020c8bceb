#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/plan/write_extent.h"
#include "checkpoint/text_range.h"
#include "support/error_message.h"

namespace tessera::checkpoints {
namespace {

std::string text_of(const WriteExtent& extent) {
  std::string text;
  for (const std::span<const std::byte> piece : extent.pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  EXPECT_EQ(text.size(), extent.num_bytes);
  return text;
}

TEST(WriteExtent, JoinsRangesThatTouch) {
  const auto extents = join_ranges({range(7, "de"), range(3, "ab"), range(5, ""), range(5, "c")});
  ASSERT_EQ(extents.size(), 2U);
  EXPECT_EQ(extents[0].offset, 3U);
  EXPECT_EQ(text_of(extents[0]), "abc");
  EXPECT_EQ(extents[1].offset, 7U);
  EXPECT_EQ(text_of(extents[1]), "de");
  EXPECT_TRUE(join_ranges({}).empty());
}

TEST(WriteExtent, RefusesRangesThatOverlap) {
  testing::expect_parts(testing::message_of<InternalError>([] { join_ranges({range(4, "c"), range(3, "ab")}); }),
                        {"begins at byte 4", "ends at byte 5"});
}

TEST(WriteExtent, IsAlignedInItsMiddle) {
  const auto extent = join_ranges({range(3, "abcdef"), range(9, "ghijklm")}).at(0);
  const AlignedExtent parts = align(extent, 4, 8);
  EXPECT_EQ(text_of(parts.head), "a");
  EXPECT_EQ(parts.middle.offset, 4U);
  EXPECT_EQ(text_of(parts.middle), "bcdefghijklm");
  EXPECT_EQ(text_of(parts.tail), "");
  EXPECT_EQ(text_of(align(extent, 8, 8).head), "abcde");
  EXPECT_EQ(text_of(align(extent, 8, 8).middle), "fghijklm");
}

TEST(WriteExtent, StaysInOnePieceWhenItsMiddleIsShort) {
  const auto extent = join_ranges({range(3, "abcdef")}).at(0);
  for (const std::uint64_t alignment : {4, 8, 16}) {
    const AlignedExtent parts = align(extent, alignment, 8);
    EXPECT_EQ(text_of(parts.head), "abcdef");
    EXPECT_EQ(parts.middle.num_bytes + parts.tail.num_bytes, 0U);
  }
}

}  // namespace
}  // namespace tessera::checkpoints
