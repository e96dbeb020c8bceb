#include "observe/terminal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::observe {
namespace {

TEST(ProgressText, WritesNumbersForPeople) {
  EXPECT_EQ(count_text(812), "812");
  EXPECT_EQ(count_text(999.6), "1.00k");
  EXPECT_EQ(count_text(14'200), "14.2k");
  EXPECT_EQ(count_text(3'100'000), "3.10M");
  EXPECT_EQ(bytes_text(812'000'000), "812 MB");
  EXPECT_EQ(bytes_text(1'420'000'000), "1.42 GB");
  EXPECT_EQ(bytes_text(123'000'000'000), "123 GB");
  EXPECT_EQ(step_time_text(0.0812), "81.2 ms");
  EXPECT_EQ(step_time_text(0.9999), "1.00 s");
  EXPECT_EQ(step_time_text(12.34), "12.3 s");
  EXPECT_EQ(loss_text(2.34567), "2.3457");
  EXPECT_EQ(loss_text(0.0000123), "1.23e-05");
  EXPECT_EQ(loss_text(0), "0.0000");
  EXPECT_EQ(loss_text(std::nan("")), "nan");
}

TEST(ProgressText, WritesHowFarATransferIs) {
  EXPECT_EQ(transfer_text("saving step 20", 312'000'000, 838'000'000, 0.25),
            "saving step 20: 312 of 838 MB, 1.25 GB/s");
  EXPECT_EQ(transfer_text("loading", 312'000'000, 8'380'000'000, 2), "loading: 312 MB of 8.38 GB, 156 MB/s");
  EXPECT_EQ(transfer_text("loading", 0, 0, 0), "loading: 0 MB, 0 MB/s");
}

TEST(ProgressText, WritesHowLongItStillTakes) {
  EXPECT_EQ(remaining_text(0.4), "0:00");
  EXPECT_EQ(remaining_text(42), "0:42");
  EXPECT_EQ(remaining_text(723), "12:03");
  EXPECT_EQ(remaining_text(3600 * 3 + 12 * 60 + 3), "3:12:03");
  EXPECT_EQ(remaining_text(86400 * 2 + 3600 * 3), "2d 03h");
  EXPECT_EQ(remaining_text(std::numeric_limits<double>::infinity()), "unknown");
  EXPECT_EQ(remaining_text(std::nan("")), "unknown");
}

StepSummary shown_sample() {
  StepSummary summary;
  summary.last = {.step = 250, .loss = 2.5};
  summary.tokens = 8192;
  summary.seconds = 0.5;
  summary.memory = {1'200'000'000, 1'500'000'000};
  return summary;
}

Pace pace_of(const StepSummary& summary) {
  Pace pace;
  pace.add(summary);
  return pace;
}

std::string line(std::size_t width, std::int64_t total_steps = 1000) {
  return progress_text(shown_sample(), pace_of(shown_sample()), {.total_steps = total_steps}, width);
}

TEST(ProgressText, ShowsEverythingThatThereIsRoomFor) {
  EXPECT_EQ(line(200),
            "step 250/1000 25%  loss 2.5000  16.4k tokens/s  500 ms/step  ETA 6:15  mem 1.20 GB  peak 1.50 GB");
  EXPECT_EQ(line(200, 0), "step 250  loss 2.5000  16.4k tokens/s  500 ms/step  mem 1.20 GB  peak 1.50 GB");
}

TEST(ProgressText, LeavesOutTheLeastImportantFirst) {
  EXPECT_EQ(line(90), "step 250/1000 25%  loss 2.5000  16.4k tokens/s  500 ms/step  ETA 6:15  mem 1.20 GB");
  EXPECT_EQ(line(60), "step 250/1000 25%  loss 2.5000  16.4k tokens/s  ETA 6:15");
  EXPECT_EQ(line(40), "step 250/1000 25%  loss 2.5000  ETA 6:15");
  EXPECT_EQ(line(20), "step 250/1000 25%");
  EXPECT_EQ(line(6), "step 2");
  for (std::size_t width = 0; width < 120; ++width) EXPECT_LE(line(width).size(), width);
}

TEST(ProgressText, LeavesOutWhatNobodyCounts) {
  StepSummary summary;
  summary.last = {.step = 1};
  summary.seconds = 2;
  EXPECT_EQ(progress_text(summary, pace_of(summary), {}, 200), "step 1  2.00 s/step  mem 0 MB  peak 0 MB");
}

TEST(Pace, ForgetsASlowStart) {
  Pace pace;
  StepSummary summary = shown_sample();
  summary.seconds = 30;
  pace.add(summary);
  EXPECT_NEAR(pace.step_seconds(), 30, 1e-9);
  summary.seconds = 0.1;
  for (int i = 0; i < 1000; ++i) pace.add(summary);
  EXPECT_NEAR(pace.step_seconds(), 0.1, 1e-3);
  EXPECT_NEAR(pace.tokens_per_second(), 81920, 1000);
}

}  // namespace
}  // namespace tessera::observe
