#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include "sample_options.h"
#include "support/error_message.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera {
namespace {

using testing::message_of;
using testing::SampleOptions;
using testing::Shape;
using testing::texts_of;

SampleOptions parsed(std::string_view text) {
  SampleOptions options;
  parse_config(text, "train.toml", options);
  return options;
}

std::string fault(std::string_view text) {
  return message_of<ConfigError>([&] { parsed(text); });
}

TEST(ParseConfig, ReadsEveryType) {
  const auto options = parsed(R"(
overlap = false
num_steps = 7
bucket_bytes = 1_000
rate = 2.5
name = "run \"1\""
wait = "500ms"
axes = ["a", "b,c"]
sizes = [2, 4]
shape = "ring"
)");
  EXPECT_FALSE(options.overlap());
  EXPECT_EQ(options.num_steps(), 7);
  EXPECT_EQ(options.bucket_bytes(), 1000);
  EXPECT_EQ(options.rate(), 2.5);
  EXPECT_EQ(options.name(), "run \"1\"");
  EXPECT_EQ(options.wait(), std::chrono::milliseconds(500));
  EXPECT_EQ(options.axes(), (std::vector<std::string>{"a", "b,c"}));
  EXPECT_EQ(options.sizes(), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(options.shape(), Shape::kRing);
}

TEST(ParseConfig, ReadsSectionsInEveryForm) {
  for (const char* text : {"[world]\nbackend = \"shm\"\n[world.retry]\nattempts = 8\n",
                           "world.backend = \"shm\"\nworld.retry.attempts = 8\n",
                           "world = {backend = \"shm\", retry = {attempts = 8}}\n"}) {
    const auto options = parsed(text);
    EXPECT_EQ(options.world().backend(), "shm") << text;
    EXPECT_EQ(options.world().retry().attempts(), 8) << text;
  }
}

TEST(ParseConfig, TakesNumbersForDurationsAsSeconds) {
  EXPECT_EQ(parsed("wait = 90").wait(), std::chrono::seconds(90));
  EXPECT_EQ(parsed("wait = 0.25").wait(), std::chrono::milliseconds(250));
}

TEST(ParseConfig, TakesIntegersForNumbers) { EXPECT_EQ(parsed("rate = 3").rate(), 3.0); }

TEST(ParseConfig, KeepsTheValuesOfAbsentKeys) {
  auto options = SampleOptions().num_steps(5).name("kept");
  parse_config("num_steps = 6", "x", options);
  EXPECT_EQ(options.num_steps(), 6);
  EXPECT_EQ(options.name(), "kept");
  EXPECT_EQ(texts_of(parsed("")), texts_of(SampleOptions()));
  EXPECT_EQ(texts_of(parsed("[world]")), texts_of(SampleOptions()));
}

TEST(ParseConfig, NamesTheNearestKeyForAnUnknownOne) {
  EXPECT_EQ(fault("\nnum_step = 3"), "train.toml:2: unknown key \"num_step\"; did you mean \"num_steps\"?");
  EXPECT_EQ(fault("[world]\nbakend = \"x\""),
            "train.toml:2: unknown key \"world.bakend\"; did you mean \"world.backend\"?");
  EXPECT_EQ(fault("timeout = \"3s\""), "train.toml:1: unknown key \"timeout\"; did you mean \"world.timeout\"?");
}

TEST(ParseConfig, ReportsAnUnknownTableOnce) {
  EXPECT_EQ(fault("\n\n[wrld]\nbackend = \"x\"\nzzz = 1"),
            "train.toml:3: unknown key \"wrld\"; did you mean \"world\"?");
}

TEST(ParseConfig, RefusesQuotedKeysWithDots) {
  EXPECT_EQ(fault("\"world.backend\" = \"x\""),
            "train.toml:1: unknown key \"world.backend\"; in quotes a key is not split at its dots");
}

TEST(ParseConfig, SaysWhatWasExpectedAndFound) {
  EXPECT_EQ(fault("num_steps = \"3\""), "train.toml:1: num_steps: expected an integer, found the string \"3\"");
  EXPECT_EQ(fault("num_steps = 3.0"), "train.toml:1: num_steps: expected an integer, found the number 3");
  EXPECT_EQ(fault("overlap = 1"), "train.toml:1: overlap: expected true or false, found the integer 1");
  EXPECT_EQ(fault("name = false"), "train.toml:1: name: expected a string, found false");
  EXPECT_EQ(fault("rate = 2024-01-01"), "train.toml:1: rate: expected a number, found a date or time");
  EXPECT_EQ(fault("axes = \"dp\""), "train.toml:1: axes: expected a list of strings, found the string \"dp\"");
  EXPECT_EQ(fault("name = [1]"), "train.toml:1: name: expected a string, found a list");
  EXPECT_EQ(fault("[name]"), "train.toml:1: name: expected a string, found a table");
  EXPECT_EQ(fault("world = 3"), "train.toml:1: world: expected a table, found the integer 3");
  EXPECT_EQ(fault("[[world]]"), "train.toml:1: world: expected a table, found a list");
  EXPECT_EQ(fault("num_steps = 3000000000"),
            "train.toml:1: num_steps: expected an integer from -2147483648 to 2147483647, found 3000000000");
}

TEST(ParseConfig, RefusesBadDurations) {
  const std::string expected =
      "train.toml:1: wait: expected a duration such as \"30s\", \"500ms\" or \"2min\", or a number of seconds, found ";
  EXPECT_EQ(fault("wait = \"soon\""), expected + "\"soon\"");
  EXPECT_EQ(fault("wait = true"), expected + "true");
  EXPECT_EQ(fault("wait = inf"), expected + "inf");
}

TEST(ParseConfig, ListsTheChoices) {
  EXPECT_EQ(fault("shape = \"tre\""),
            "train.toml:1: shape: expected one of \"ring\", \"tree\", found \"tre\"; did you mean \"tree\"?");
  EXPECT_EQ(fault("shape = 1"), "train.toml:1: shape: expected a string, found the integer 1");
}

TEST(ParseConfig, PointsAtEveryWrongItemOfAList) {
  EXPECT_EQ(fault("sizes = [\n 1,\n \"two\",\n 3,\n 4.5,\n]"),
            "train.toml:3: sizes[1]: expected an integer, found the string \"two\"\n"
            "train.toml:5: sizes[3]: expected an integer, found the number 4.5");
}

TEST(ParseConfig, ReportsAllFaultsAtOnceInTheOrderOfLines) {
  EXPECT_EQ(fault("wait = \"never\"\nrates = 1\nnum_steps = true\n[world]\nstrategy = \"x\"\nretri = 1\n"),
            "train.toml:1: wait: expected a duration such as \"30s\", \"500ms\" or \"2min\", or a number of seconds, "
            "found \"never\"\n"
            "train.toml:2: unknown key \"rates\"; did you mean \"rate\"?\n"
            "train.toml:3: num_steps: expected an integer, found true\n"
            "train.toml:5: world.strategy: expected one of \"ring\", \"tree\", found \"x\"\n"
            "train.toml:6: unknown key \"world.retri\"; did you mean \"world.retry\"?");
}

TEST(ParseConfig, LeavesOptionsAloneOnFaults) {
  auto options = SampleOptions().num_steps(5);
  EXPECT_THROW(parse_config("num_steps = 6\noverlap = 1", "x", options), ConfigError);
  EXPECT_EQ(options.num_steps(), 5);
}

TEST(ParseConfig, PointsAtMalformedToml) {
  EXPECT_TRUE(fault("rate = 1.0\nname = \"open\nwait = 1").starts_with("train.toml:2: malformed TOML: "));
  EXPECT_TRUE(fault("rate = 1.0\nrate = 2.0").starts_with("train.toml:2: malformed TOML: "));
  EXPECT_TRUE(fault("\n\nrate =").starts_with("train.toml:3: malformed TOML: "));
}

TEST(LoadConfig, ReadsAFileAndNamesItInFaults) {
  const auto path =
      std::filesystem::path(::testing::TempDir()) / ("load_config_test." + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "num_steps = 12\n";
  SampleOptions options;
  load_config(path, options);
  EXPECT_EQ(options.num_steps(), 12);
  std::ofstream(path) << "num_stepz = 12\n";
  EXPECT_EQ(message_of<ConfigError>([&] { load_config(path, options); }),
            path.string() + ":1: unknown key \"num_stepz\"; did you mean \"num_steps\"?");
  std::filesystem::remove(path);
}

TEST(LoadConfig, RefusesUnreadableFiles) {
  SampleOptions options;
  EXPECT_EQ(message_of<ConfigError>([&] { load_config("/nonexistent/a.toml", options); }),
            "cannot read the config file /nonexistent/a.toml: No such file or directory");
  EXPECT_EQ(message_of<ConfigError>([&] { load_config(::testing::TempDir(), options); }),
            "cannot read the config file " + ::testing::TempDir() + ": Is a directory");
}

}  // namespace
}  // namespace tessera
