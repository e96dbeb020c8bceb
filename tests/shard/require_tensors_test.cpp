#include "support/require_tensors.h"

#include <gtest/gtest.h>

namespace tessera::testing {
namespace {

std::string message(const at::Tensor& found, const at::Tensor& expected) {
  try {
    require_equal(found, expected, "it");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(RequireEqualTensors, SaysWhereTheyDiffer) {
  const at::Tensor ones = at::ones({2, 3});
  EXPECT_EQ(message(ones, at::ones({2, 3})), "");
  at::Tensor other = ones.clone();
  other[1][0] = 5;
  other[1][2] = 7;
  EXPECT_EQ(message(other, ones), "it: 2 of 6 elements differ; element 3: found 5, expected 1");
  EXPECT_NE(message(ones, at::ones({3, 2})).find("[2, 3], expected"), std::string::npos);
  EXPECT_NE(message(ones, at::ones({2, 3}, at::kDouble)).find("Float"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
