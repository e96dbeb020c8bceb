#include <tessera/core/error.h>
#include <tessera/core/options.h>
#include "sample_options.h"
#include "support/error_message.h"

#include <gtest/gtest.h>
#include <limits>

namespace tessera {
namespace {

using testing::LinkOptions;
using testing::message_of;
using testing::SampleOptions;
using testing::Shape;

std::string set_fault(std::string_view key, std::string_view text) {
  SampleOptions options;
  return message_of<ConfigError>([&] { SampleOptions::fields().set_text(options, key, text); });
}

void expect_text_round_trip(const SampleOptions& options) {
  SampleOptions copy;
  for (const Field& field : SampleOptions::fields().fields()) {
    SampleOptions::fields().set_text(copy, field.key, SampleOptions::fields().get_text(options, field.key));
  }
  EXPECT_EQ(testing::texts_of(copy), testing::texts_of(options));
}

TEST(FieldList, DescribesEveryField) {
  const auto& fields = SampleOptions::fields();
  EXPECT_EQ(fields.name(), "sample");
  EXPECT_EQ(fields.fields().size(), 14U);
  const Field& wait = fields.at("wait");
  EXPECT_EQ(wait.type(), FieldType::kDuration);
  EXPECT_EQ(wait.type_name(), "duration");
  EXPECT_EQ(wait.default_text(), "2min");
  EXPECT_EQ(wait.help, "a wait");
  EXPECT_TRUE(wait.choices.empty());
}

TEST(FieldList, NamesEveryType) {
  std::vector<std::string> names;
  for (const char* key : {"overlap", "num_steps", "bucket_bytes", "rate", "name", "wait", "axes", "sizes", "shape"}) {
    names.push_back(SampleOptions::fields().at(key).type_name());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"boolean", "integer", "integer", "number", "string", "duration",
                                             "list of strings", "list of integers", "string"}));
}

TEST(FieldList, TakesDefaultsFromTheOuterOptions) {
  EXPECT_EQ(LinkOptions::fields().at("backend").default_text(), "auto");
  EXPECT_EQ(SampleOptions::fields().at("world.backend").default_text(), "gloo");
}

TEST(FieldList, GivesChoicesOfStringsAndEnums) {
  EXPECT_EQ(SampleOptions::fields().at("world.strategy").choices, (std::vector<std::string>{"ring", "tree"}));
  EXPECT_EQ(SampleOptions::fields().at("shape").choices, (std::vector<std::string>{"ring", "tree"}));
}

TEST(FieldList, SetsEveryTypeFromText) {
  SampleOptions options;
  const auto& fields = SampleOptions::fields();
  fields.set_text(options, "overlap", "false");
  fields.set_text(options, "num_steps", "-7");
  fields.set_text(options, "bucket_bytes", "9223372036854775807");
  fields.set_text(options, "rate", "1e-3");
  fields.set_text(options, "name", "a b,c");
  fields.set_text(options, "wait", "500ms");
  fields.set_text(options, "axes", "dp,\"t,p\"");
  fields.set_text(options, "sizes", "4,-2");
  fields.set_text(options, "shape", "ring");
  EXPECT_FALSE(options.overlap());
  EXPECT_EQ(options.num_steps(), -7);
  EXPECT_EQ(options.bucket_bytes(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(options.rate(), 1e-3);
  EXPECT_EQ(options.name(), "a b,c");
  EXPECT_EQ(options.wait(), std::chrono::milliseconds(500));
  EXPECT_EQ(options.axes(), (std::vector<std::string>{"dp", "t,p"}));
  EXPECT_EQ(options.sizes(), (std::vector<std::int64_t>{4, -2}));
  EXPECT_EQ(options.shape(), Shape::kRing);
}

TEST(FieldList, ReachesIntoSections) {
  SampleOptions options;
  SampleOptions::fields().set_text(options, "world.timeout", "5s");
  SampleOptions::fields().set_text(options, "world.retry.attempts", "9");
  EXPECT_EQ(options.world().timeout(), std::chrono::seconds(5));
  EXPECT_EQ(options.world().retry().attempts(), 9);
  EXPECT_EQ(SampleOptions::fields().get_text(options, "world.retry.pause"), "250ms");
}

TEST(FieldList, ReadsBackTheTextItGives) {
  expect_text_round_trip(SampleOptions());
  expect_text_round_trip(SampleOptions()
                             .overlap(false)
                             .num_steps(std::numeric_limits<int>::min())
                             .bucket_bytes(std::numeric_limits<std::int64_t>::min())
                             .rate(0.1 + 0.2)
                             .name("x=\"1\"\n")
                             .axes({"", "a,b", "say \"hi\"", "back\\slash", " space "})
                             .sizes({0, -1})
                             .shape(Shape::kRing));
  expect_text_round_trip(SampleOptions().axes({""}).rate(-std::numeric_limits<double>::infinity()));
  expect_text_round_trip(SampleOptions().axes({}).rate(std::numeric_limits<double>::denorm_min()));
}

TEST(FieldList, KeepsEmptyAndOneEmptyItemApart) {
  SampleOptions options;
  SampleOptions::fields().set_text(options, "axes", "");
  EXPECT_TRUE(options.axes().empty());
  SampleOptions::fields().set_text(options, "axes", "\"\"");
  EXPECT_EQ(options.axes(), std::vector<std::string>{""});
}

TEST(FieldList, RefusesTextOfTheWrongType) {
  EXPECT_EQ(set_fault("overlap", "yes"), "overlap: expected true or false, found \"yes\"");
  EXPECT_EQ(set_fault("num_steps", "3.5"), "num_steps: expected an integer, found \"3.5\"");
  EXPECT_EQ(set_fault("rate", "fast"), "rate: expected a number, found \"fast\"");
  EXPECT_EQ(set_fault("sizes", "1,x"), "sizes: expected a list of integers, found \"1,x\"");
  EXPECT_EQ(set_fault("wait", "soon"),
            "wait: expected a duration such as \"30s\", \"500ms\" or \"2min\", or a number of seconds, found \"soon\"");
}

TEST(FieldList, RefusesListsWithHoles) {
  for (const char* text : {"a,,b", ",a", "a,", "\"a", "\"a\"b"}) {
    EXPECT_NE(set_fault("axes", text), "") << text;
  }
}

TEST(FieldList, RefusesIntegersThatTheMemberCannotHold) {
  EXPECT_EQ(set_fault("num_steps", "3000000000"),
            "num_steps: expected an integer from -2147483648 to 2147483647, found 3000000000");
  EXPECT_EQ(set_fault("bucket_bytes", "9223372036854775808"),
            "bucket_bytes: expected an integer, found \"9223372036854775808\"");
}

TEST(FieldList, RefusesWhatIsNoChoice) {
  EXPECT_EQ(set_fault("world.strategy", "rnig"),
            "world.strategy: expected one of \"ring\", \"tree\", found \"rnig\"; did you mean \"ring\"?");
  EXPECT_EQ(set_fault("shape", "butterfly"), "shape: expected one of \"ring\", \"tree\", found \"butterfly\"");
}

TEST(FieldList, RefusesUnknownKeysWithTheNearest) {
  EXPECT_EQ(set_fault("num-steps", "1"), "unknown key \"num-steps\"; did you mean \"num_steps\"?");
  EXPECT_EQ(SampleOptions::fields().find("num-steps"), nullptr);
  EXPECT_THROW(SampleOptions::fields().get_text(SampleOptions(), "nope"), ConfigError);
}

TEST(FieldList, ChecksChoicesGivenByBuilderCalls) {
  EXPECT_NO_THROW(SampleOptions::fields().check(SampleOptions()));
  const auto options = SampleOptions().world(LinkOptions().strategy("star"));
  EXPECT_EQ(message_of<ConfigError>([&] { SampleOptions::fields().check(options); }),
            "world.strategy: expected one of \"ring\", \"tree\", found \"star\"");
}

struct Plain {
  int number = 0;
  std::string word = "none";
  Shape shape = Shape::kRing;
};

TEST(FieldList, RefusesListsThatContradictThemselves) {
  FieldList<Plain> list("plain");
  list.add("number", &Plain::number, "");
  EXPECT_THROW(list.add("number", &Plain::number, ""), InternalError);
  EXPECT_THROW(list.add("number.more", &Plain::number, ""), InternalError);
  EXPECT_THROW(list.add("Number", &Plain::number, ""), InternalError);
  EXPECT_THROW(list.add("", &Plain::number, ""), InternalError);
  EXPECT_THROW(list.add_choice("word", &Plain::word, {"a", "b"}, ""), InternalError);
  EXPECT_THROW(list.add_enum("shape", &Plain::shape, {{"tree", Shape::kTree}}, ""), InternalError);
  EXPECT_EQ(list.fields().size(), 1U);
}

TEST(FieldList, KeepsHelpOnOneLine) {
  const auto list = FieldList<Plain>("plain").add("number", &Plain::number, "one\ntwo");
  EXPECT_EQ(list.at("number").help, "one two");
}

}  // namespace
}  // namespace tessera
