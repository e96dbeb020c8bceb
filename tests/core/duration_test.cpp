#include <tessera/core/error.h>
#include "core/field_text.h"

#include <gtest/gtest.h>
#include <limits>

namespace tessera {
namespace {

using std::chrono::milliseconds;

TEST(Duration, ReadsEveryUnit) {
  EXPECT_EQ(parse_duration("500ms"), milliseconds(500));
  EXPECT_EQ(parse_duration("30s"), milliseconds(30'000));
  EXPECT_EQ(parse_duration("2min"), milliseconds(120'000));
  EXPECT_EQ(parse_duration("1h"), milliseconds(3'600'000));
  EXPECT_EQ(parse_duration("-1s"), milliseconds(-1'000));
}

TEST(Duration, CountsSecondsWithoutAUnit) {
  EXPECT_EQ(parse_duration("30"), milliseconds(30'000));
  EXPECT_EQ(duration_of_seconds(std::int64_t{5}), milliseconds(5'000));
  EXPECT_EQ(duration_of_seconds(0.25), milliseconds(250));
}

TEST(Duration, TakesDecimalFractionsExactly) {
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1'500));
  for (int count = 1; count < 1000; ++count) {
    EXPECT_EQ(duration_of_seconds(count / 1000.0), milliseconds(count));
  }
}

TEST(Duration, RefusesWhatIsNoDuration) {
  for (const char* text : {"", "s", "soon", "30 s", "30sec", "5m", "1e3s", "--3s", "1..5s", "3s4"}) {
    EXPECT_THROW(parse_duration(text), ConfigError) << text;
  }
}

TEST(Duration, RefusesPartsOfAMillisecond) {
  EXPECT_THROW(parse_duration("0.5ms"), ConfigError);
  EXPECT_THROW(duration_of_seconds(0.0001), ConfigError);
}

TEST(Duration, RefusesWhatDoesNotFit) {
  EXPECT_THROW(parse_duration("9223372036854775807s"), ConfigError);
  EXPECT_THROW(parse_duration("99999999999999999999ms"), ConfigError);
  EXPECT_THROW(duration_of_seconds(std::numeric_limits<std::int64_t>::max()), ConfigError);
  EXPECT_THROW(duration_of_seconds(std::numeric_limits<double>::infinity()), ConfigError);
  EXPECT_THROW(duration_of_seconds(std::numeric_limits<double>::quiet_NaN()), ConfigError);
}

TEST(Duration, IsWrittenInTheLargestUnitThatDivides) {
  EXPECT_EQ(duration_text(milliseconds(0)), "0s");
  EXPECT_EQ(duration_text(milliseconds(1'500)), "1500ms");
  EXPECT_EQ(duration_text(milliseconds(90'000)), "90s");
  EXPECT_EQ(duration_text(milliseconds(300'000)), "5min");
  EXPECT_EQ(duration_text(milliseconds(7'200'000)), "2h");
}

TEST(Duration, ReadsBackWhatItWrites) {
  for (const auto duration : {milliseconds(0), milliseconds(1), milliseconds(-60'000), milliseconds::max(),
                              milliseconds::min(), milliseconds(86'400'001)}) {
    EXPECT_EQ(parse_duration(duration_text(duration)), duration);
  }
}

}  // namespace
}  // namespace tessera
