#include <tessera/flight/clock.h>
#include <tessera/observe/tracer.h>

#include <gtest/gtest.h>

#include <thread>

#include "observe/trace_decoder.h"
#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

using ::tessera::testing::on_track;
using ::tessera::testing::read_trace;
using ::tessera::testing::Slice;
using ::tessera::testing::TemporaryFolder;

CallRecord call(const std::string& operation, std::int64_t start_ns, std::int64_t end_ns) {
  CallRecord record;
  record.sequence = 12;
  record.group = "world/dp.0";
  record.operation = operation;
  record.dtype = "Float";
  record.shape = {32, 8};
  record.file = "train.cpp";
  record.line = 40;
  record.state = CallState::kDone;
  record.started_ns = start_ns;
  record.ended_ns = end_ns;
  return record;
}

struct TracerTest : ::testing::Test {
  TracerTest() { tracer->start(); }
  std::vector<Slice> written() {
    tracer->write_pending();
    return read_trace(path);
  }

  TemporaryFolder folder;
  std::string path = folder.file("t.rank3.pftrace");
  std::shared_ptr<Tracer> tracer = std::make_shared<Tracer>(path, RunDescription{.rank = 3, .num_ranks = 4});
};

TEST_F(TracerTest, HoldsSpansOfThisThreadNested) {
  {
    const Span outer(tracer, "step");
    const Span inner(tracer, "forward");
  }
  const auto spans = on_track(written(), 3, "compute");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "step");
  EXPECT_EQ(spans[1].name, "forward");
  EXPECT_EQ(spans[0].category, "compute");
  EXPECT_LE(spans[0].start_ns, spans[1].start_ns);
  EXPECT_GE(spans[0].end_ns, spans[1].end_ns);
  EXPECT_EQ(spans[0].track.find("rank 3 of 4 ("), 0U);
}

TEST_F(TracerTest, GivesEachThreadATrack) {
  {
    const Span span(tracer, "here");
  }
  std::thread([&] { const Span span(tracer, "there"); }).join();
  const auto slices = written();
  ASSERT_EQ(on_track(slices, 3, "compute").size(), 1U);
  ASSERT_EQ(on_track(slices, 3, "thread 2").size(), 1U);
  EXPECT_EQ(on_track(slices, 3, "thread 2")[0].name, "there");
}

TEST_F(TracerTest, PutsCallsThatOverlapOnTracksOfTheirOwn) {
  tracer->call_ended(call("all_reduce", 100, 900), 500, 30);  // waited for until 900, done at 500
  tracer->call_ended(call("all_gather", 200, 950), 600, 0);
  tracer->call_ended(call("barrier", 700, 800), 800, 100);
  const auto slices = written();
  const auto first = on_track(slices, 3, "communication");
  const auto second = on_track(slices, 3, "communication 2");
  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(first[0].name, "all_reduce");
  EXPECT_EQ(first[0].start_ns, 100);
  EXPECT_EQ(first[0].end_ns, 500);
  EXPECT_EQ(first[0].annotations.at("returned_after_ns"), "800");
  EXPECT_EQ(first[0].annotations.at("blocked_ns"), "30");
  EXPECT_EQ(first[0].annotations.at("group"), "world/dp.0");
  EXPECT_EQ(first[0].annotations.at("number"), "12");
  EXPECT_EQ(first[0].annotations.at("tensor"), "Float [32, 8]");
  EXPECT_EQ(first[0].annotations.at("at"), "train.cpp:40");
  EXPECT_EQ(first[1].name, "barrier");
  EXPECT_EQ(second[0].name, "all_gather");
}

TEST_F(TracerTest, HoldsStepsAndClocks) {
  tracer->add_step({.step = 5, .loss = 2.5, .tokens = 64}, 1000, 2000);
  tracer->add_clock({-500, 20});
  const auto slices = written();
  const auto steps = on_track(slices, 3, "steps");
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].name, "step 5");
  EXPECT_EQ(steps[0].annotations.at("tokens"), "64");
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_EQ(slices[1].name, "clock comparison");
  EXPECT_EQ(slices[1].annotations.at("offset_ns"), "-500");
}

TEST_F(TracerTest, TakesNothingWhileItIsStopped) {
  tracer->stop();
  {
    const Span span(tracer, "lost");
  }
  tracer->call_ended(call("barrier", 1, 2), 2, 1);
  EXPECT_TRUE(written().empty());
  EXPECT_EQ(tracer->num_dropped(), 0U);
}

TEST_F(TracerTest, CountsWhatDoesNotFit) {
  constexpr std::uint64_t kMore = (std::uint64_t{1} << 16) + 10;
  for (std::uint64_t i = 0; i < kMore; ++i) tracer->add_span("s", 10, 10);
  EXPECT_EQ(tracer->num_dropped(), 10U);
  EXPECT_EQ(written().size(), kMore - 10);
}

TEST(Span, WithoutATracerDoesNothing) { const Span span(nullptr, "nothing"); }

}  // namespace
}  // namespace tessera::observe
