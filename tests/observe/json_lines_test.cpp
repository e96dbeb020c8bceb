#include "observe/sinks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

StepSummary logged_sample() {
  StepSummary summary;
  summary.last = {.step = 7, .loss = 2.5, .learning_rate = 1e-3, .scalars = {{"validation/loss", 2.75}}};
  summary.tokens = 100;
  summary.seconds = 0.5;
  summary.time_ns = 1'500'000'000;
  summary.memory = {10, 20};
  return summary;
}

TEST(JsonLines, HoldWhatWasRecordedAndNothingElse) {
  const auto object = nlohmann::json::parse(json_line(logged_sample()));
  EXPECT_EQ(object["step"], 7);
  EXPECT_EQ(object["time"], 1.5);
  EXPECT_EQ(object["loss"], 2.5);
  EXPECT_EQ(object["learning_rate"], 1e-3);
  EXPECT_FALSE(object.contains("gradient_norm"));
  EXPECT_EQ(object["step_seconds"], 0.5);
  EXPECT_EQ(object["tokens"], 100);
  EXPECT_EQ(object["tokens_per_second"], 200);
  EXPECT_EQ(object["resident_bytes"], 10);
  EXPECT_EQ(object["peak_bytes"], 20);
  EXPECT_EQ(object["scalars"]["validation/loss"], 2.75);
}

TEST(JsonLines, SayNullForWhatIsNoNumber) {
  StepSummary summary = logged_sample();
  summary.last.loss = std::nan("");
  const auto object = nlohmann::json::parse(json_line(summary));
  ASSERT_TRUE(object.contains("loss"));
  EXPECT_TRUE(object["loss"].is_null());
}

TEST(JsonLines, TakeNamesThatAreNoText) {
  StepSummary summary = logged_sample();
  summary.last.scalars = {{"a\"b\n\xff", 1}};
  EXPECT_EQ(nlohmann::json::parse(json_line(summary))["scalars"].size(), 1U);
}

TEST(JsonLines, AreAppendedToTheFileOfAnEarlierRun) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("new/folder/log.jsonl");
  for (int run = 0; run < 2; ++run) {
    const auto sink = make_json_lines(path, {.num_ranks = 2, .total_steps = 9, .config = "a = 1\n"});
    sink->take(logged_sample());
    sink->flush();
    sink->close();
  }
  std::istringstream lines(testing::text_of_file(path));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 4U);
  EXPECT_EQ(objects[0]["run"]["config"], "a = 1\n");
  EXPECT_EQ(objects[0]["run"]["ranks"], 2);
  EXPECT_EQ(objects[2]["run"]["total_steps"], 9);
  EXPECT_EQ(objects[3]["step"], 7);
}

}  // namespace
}  // namespace tessera::observe
