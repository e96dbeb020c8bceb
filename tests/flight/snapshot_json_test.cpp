#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "flight/scene.h"

namespace tessera::flight {
namespace {

TEST(SnapshotJson, ReadsWhatItWrote) {
  Scene scene(4);
  scene.call(1, "all_reduce", 40);
  scene.call(1, "barrier", 41);
  Snapshot snapshot = *scene.at(1).snapshot;
  snapshot.verdict = "rank 0 ate the batch";
  snapshot.task = TaskRecord{"Forward of micro-batch 3, stage 1", 7};
  snapshot.calls.back().peer = 2;
  snapshot.calls.back().awaited_ns = 9;
  EXPECT_EQ(snapshot_from_json(to_json(snapshot)), snapshot);
}

TEST(SnapshotJson, LeavesOldCallsOut) {
  Scene scene(1);
  for (std::uint32_t i = 0; i < 10; ++i) scene.call(0, "barrier", i);
  const Snapshot read = snapshot_from_json(to_json(*scene.at(0).snapshot, 3));
  ASSERT_EQ(read.calls.size(), 3U);
  EXPECT_EQ(read.calls.back().line, 9U);
}

TEST(SnapshotJson, SurvivesNamesThatAreNotUtf8) {
  Scene scene(1);
  scene.call(0, "barrier", 1).file = "\xff\xfe.cpp";
  EXPECT_EQ(snapshot_from_json(to_json(*scene.at(0).snapshot)).calls.size(), 1U);
}

TEST(SnapshotJson, RefusesNumbersThatDoNotFit) {
  Scene scene(1);
  const std::string whole = to_json(*scene.at(0).snapshot);
  const std::string size = "\"world_size\":1";
  ASSERT_NE(whole.find(size), std::string::npos) << whole;
  for (const char* number : {"2666666666.67", "4294967296", "1.5", "-9223372036854775809", "\"1\"", "true", "null"}) {
    std::string text = whole;
    text.replace(text.find(size), size.size(), std::string("\"world_size\":") + number);
    EXPECT_THROW(snapshot_from_json(text), ConfigError) << number;
  }
}

TEST(SnapshotJson, RefusesWhatIsNone) {
  for (const char* text : {"", "{}", "[]", "{\"rank\": \"x\"}", "\x01", "null"}) {
    EXPECT_THROW(snapshot_from_json(text), ConfigError) << text;
  }
  Scene scene(1);
  scene.call(0, "barrier", 1);
  const std::string whole = to_json(*scene.at(0).snapshot);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(snapshot_from_json(whole.substr(0, length)), ConfigError);
  }
}

TEST(HangReportJson, ReadsWhatItWrote) {
  Scene scene(3);
  for (const int rank : {0, 1}) scene.call(rank, "all_reduce", 40);
  scene.at(2).condition = RankCondition::kDead;
  scene.at(2).detail = "ended by SIGKILL";
  scene.at(2).snapshot.reset();
  scene.at(1).stack = {"a", "b"};
  const HangReport report = scene.report();
  EXPECT_EQ(hang_report_from_json(to_json(report)), report);
}

TEST(HangReportJson, RefusesWhatIsNone) {
  for (const char* text : {"", "{}", "{\"format\": \"tessera hang report 9\"}", "7"}) {
    EXPECT_THROW(hang_report_from_json(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace tessera::flight
