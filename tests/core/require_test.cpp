#include "support/require.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

namespace tessera::testing {
namespace {

enum class Colour { kRed, kGreen };

std::string message(const auto& found, const auto& expected) {
  try {
    require_equal(found, expected, "it");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(RequireEqual, SaysWhatDiffers) {
  EXPECT_EQ(message(std::size_t{3}, 3), "");
  EXPECT_EQ(message(std::size_t{3}, -1), "it: found 3, expected -1");
  EXPECT_EQ(message(true, false), "it: found true, expected false");
  EXPECT_EQ(message(std::string("a"), "b"), "it: found a, expected b");
  EXPECT_EQ(message(std::byte{7}, std::byte{8}), "it: found 7, expected 8");
  EXPECT_EQ(message(Colour::kRed, Colour::kGreen), "it: found 0, expected 1");
  EXPECT_EQ(message(std::optional<int>(), 20), "it: found nothing, expected 20");
  EXPECT_EQ(message(std::optional(10), std::optional<int>()), "it: found 10, expected nothing");
  EXPECT_EQ(message(std::vector{1, 2}, std::vector{1}), "it: found [1, 2], expected [1]");
  EXPECT_EQ(message(std::map<std::string, int>{{"a", 1}}, std::map<std::string, int>()),
            "it: found [a: 1], expected []");
}

}  // namespace
}  // namespace tessera::testing
