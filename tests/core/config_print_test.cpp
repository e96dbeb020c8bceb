#include <tessera/core/config_file.h>
#include "sample_options.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace tessera {
namespace {

using testing::LinkOptions;
using testing::RetryOptions;
using testing::SampleOptions;
using testing::Shape;

SampleOptions printed_and_parsed(const SampleOptions& options) {
  // Every value differs from its default's, so that none passes by being left out.
  auto result = SampleOptions()
                    .world(LinkOptions()
                               .backend("-")
                               .strategy("tree")
                               .timeout(std::chrono::hours(9))
                               .retry(RetryOptions().attempts(-9).pause(std::chrono::hours(9))))
                    .overlap(!options.overlap())
                    .num_steps(-9)
                    .bucket_bytes(-9)
                    .rate(-9)
                    .name("-")
                    .wait(std::chrono::hours(9))
                    .axes({"-"})
                    .sizes({-9})
                    .shape(options.shape() == Shape::kRing ? Shape::kTree : Shape::kRing);
  parse_config(print_config(options), "printed", result);
  return result;
}

void expect_round_trip(const SampleOptions& options) {
  EXPECT_EQ(texts_of(printed_and_parsed(options)), texts_of(options)) << print_config(options);
}

TEST(PrintConfig, WritesHelpSectionsAndValues) {
  EXPECT_EQ(print_config(LinkOptions()),
            "# who moves the bytes\n"
            "backend = \"auto\"\n"
            "# ring | tree\n"
            "strategy = \"ring\"\n"
            "# how long a call may take\n"
            "timeout = \"30s\"\n"
            "\n"
            "[retry]\n"
            "# how often to try\n"
            "attempts = 3\n"
            "# how long to wait between two tries\n"
            "pause = \"250ms\"\n");
}

TEST(PrintConfig, PutsWhatIsInNoSectionFirst) {
  const std::string text = print_config(SampleOptions());
  EXPECT_LT(text.find("shape = \"tree\""), text.find("[world]"));
  EXPECT_LT(text.find("[world]"), text.find("[world.retry]"));
}

TEST(PrintConfig, LoadsBackDefaults) { expect_round_trip(SampleOptions()); }

TEST(PrintConfig, LoadsBackEveryType) {
  expect_round_trip(SampleOptions()
                        .world(LinkOptions().backend("mpi").timeout(std::chrono::milliseconds(1)))
                        .overlap(false)
                        .num_steps(std::numeric_limits<int>::max())
                        .bucket_bytes(std::numeric_limits<std::int64_t>::min())
                        .rate(0.1 + 0.2)
                        .name("tab\t quote\" back\\slash line\n return\r bell\a delete\x7f caf\u00e9 # = [x]")
                        .wait(std::chrono::milliseconds::max())
                        .axes({"", "a,b", "\"", "\\"})
                        .sizes({std::numeric_limits<std::int64_t>::max(), 0, -1})
                        .shape(Shape::kRing));
  expect_round_trip(SampleOptions().name(std::string("nul\0here", 8)).axes({}).sizes({}));
}

TEST(PrintConfig, LoadsBackUnusualNumbers) {
  using Limits = std::numeric_limits<double>;
  for (const double rate : {0.0, 1.0, -1.0, 1e300, 1e-300, 1e22, 123456789.0, Limits::max(), Limits::denorm_min(),
                            Limits::infinity(), -Limits::infinity()}) {
    EXPECT_EQ(printed_and_parsed(SampleOptions().rate(rate)).rate(), rate);
  }
  EXPECT_TRUE(std::signbit(printed_and_parsed(SampleOptions().rate(-0.0)).rate()));
  EXPECT_TRUE(std::isnan(printed_and_parsed(SampleOptions().rate(Limits::quiet_NaN())).rate()));
}

TEST(PrintConfig, KeepsWholeNumbersApartFromIntegers) {
  EXPECT_NE(print_config(SampleOptions().rate(2)).find("rate = 2.0\n"), std::string::npos);
}

TEST(ReferenceTable, HasARowForEachField) {
  EXPECT_EQ(reference_table(LinkOptions::fields()),
            "| key | type | default | meaning |\n"
            "|---|---|---|---|\n"
            "| `backend` | string | `\"auto\"` | who moves the bytes |\n"
            "| `retry.attempts` | integer | `3` | how often to try |\n"
            "| `retry.pause` | duration | `\"250ms\"` | how long to wait between two tries |\n"
            "| `strategy` | one of \"ring\", \"tree\" | `\"ring\"` | ring \\| tree |\n"
            "| `timeout` | duration | `\"30s\"` | how long a call may take |\n");
}

}  // namespace
}  // namespace tessera
