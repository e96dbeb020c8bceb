#include "core/nearest_key.h"
#include "sample_options.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::SampleOptions;

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("bakend", "backend"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3U);
}

TEST(Nearest, TakesTheFirstOfEquals) { EXPECT_EQ(nearest("tree", {"ring", "tref", "trea"}), "tref"); }

TEST(Nearest, IsNoneWhenMoreThanHalfDiffers) {
  EXPECT_EQ(nearest("xy", {"lr", "ring"}), std::nullopt);
  EXPECT_EQ(nearest("xy", {}), std::nullopt);
}

TEST(UnknownKeyHint, NamesTheNearestKeyBesideIt) {
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "num_step"), "did you mean \"num_steps\"?");
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "world.bakend"), "did you mean \"world.backend\"?");
}

TEST(UnknownKeyHint, FindsAKeyOfAnotherSection) {
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "timeout"), "did you mean \"world.timeout\"?");
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "world.overlap"), "did you mean \"overlap\"?");
}

TEST(UnknownKeyHint, KnowsSections) {
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "wrld"), "did you mean \"world\"?");
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "world.rety"), "did you mean \"world.retry\"?");
}

TEST(UnknownKeyHint, ListsTheKeysBesideItWhenNoneIsNear) {
  EXPECT_EQ(unknown_key_hint(SampleOptions::fields(), "world.retry.zzzzzzzz"),
            "valid keys are world.retry.attempts, world.retry.pause");
}

TEST(SectionNames, AreListedOnceAndOuterOnesFirst) {
  EXPECT_EQ(section_names(SampleOptions::fields()), (std::vector<std::string>{"world", "world.retry"}));
}

}  // namespace
}  // namespace tessera
