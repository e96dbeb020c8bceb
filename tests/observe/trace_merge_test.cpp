#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/observe/tracer.h>

#include <gtest/gtest.h>

#include <fstream>

#include "observe/trace_decoder.h"
#include "observe/trace_file.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

using ::tessera::testing::message_of;
using ::tessera::testing::on_track;
using ::tessera::testing::read_trace;
using ::tessera::testing::TemporaryFolder;
using ::tessera::testing::text_of_file;

/// A rank whose clock is behind rank 0's by `offsets`, at these times of its own.
std::string write_rank(const TemporaryFolder& folder, int rank,
                       const std::vector<std::pair<std::int64_t, std::int64_t>>& clocks,
                       const std::vector<std::int64_t>& spans) {
  const std::string path = folder.file("t.rank" + std::to_string(rank) + ".pftrace");
  TraceFile file(path, {.rank = rank, .num_ranks = 2}, std::this_thread::get_id());
  for (const auto& [time, offset] : clocks) file.add(ClockEvent{{offset, 7}, time});
  for (const std::int64_t start : spans) {
    file.add(SpanEvent{"at " + std::to_string(start), std::this_thread::get_id(), start, start + 10});
  }
  file.flush();
  return path;
}

TEST(TraceMerge, PutsRanksOnTheClockOfRankZero) {
  const TemporaryFolder folder;
  const auto first = write_rank(folder, 0, {{1000, 0}}, {2000});
  const auto second = write_rank(folder, 1, {{500'000, -400'000}}, {402'000, 600'000});
  const auto merged = folder.file("merged.pftrace");
  const auto summary = merge_traces({second, first}, merged);
  ASSERT_EQ(summary.size(), 2U);
  EXPECT_EQ(summary[0].rank, 0);
  EXPECT_EQ(summary[1].offset_ns, -400'000);
  EXPECT_EQ(summary[1].error_ns, 7);
  const auto slices = read_trace(merged);
  const auto zero = on_track(slices, 0, "compute");
  const auto one = on_track(slices, 1, "compute");
  ASSERT_EQ(zero.size(), 1U);
  ASSERT_EQ(one.size(), 2U);
  EXPECT_EQ(zero[0].start_ns, 2000);
  EXPECT_EQ(one[0].start_ns, 2000);
  EXPECT_EQ(one[0].end_ns, 2010);
  EXPECT_EQ(one[1].start_ns, 200'000);
}

TEST(TraceMerge, EvensOutTheDriftBetweenTwoComparisons) {
  const TemporaryFolder folder;
  const auto path = write_rank(folder, 1, {{1000, 100}, {2000, 200}}, {500, 1500, 1900, 3000});
  merge_traces({path}, folder.file("merged"));
  const auto spans = on_track(read_trace(folder.file("merged")), 1, "compute");
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].start_ns, 600);
  EXPECT_EQ(spans[1].start_ns, 1650);
  EXPECT_EQ(spans[2].start_ns, 2090);
  EXPECT_EQ(spans[3].start_ns, 3200);
}

TEST(TraceMerge, KeepsWhatAKilledRankLeft) {
  const TemporaryFolder folder;
  const auto path = write_rank(folder, 0, {}, {100, 200});
  const std::string whole = text_of_file(path);
  std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - 3);
  const auto summary = merge_traces({path}, folder.file("merged"));
  EXPECT_GT(summary[0].num_lost_bytes, 0);
  EXPECT_LT(summary[0].num_lost_bytes, 40);
}

TEST(TraceMerge, RefusesWhatIsNoTraceOfARank) {
  const TemporaryFolder folder;
  const auto path = write_rank(folder, 0, {}, {100});
  const auto merged = folder.file("merged");
  const auto refusal = [&](const std::vector<std::filesystem::path>& files) {
    return message_of<ConfigError>([&] { merge_traces(files, merged); });
  };
  const auto text = folder.write("text", "this is some text, not a trace", 0600);
  const auto empty = folder.write("empty", "", 0600);
  const auto copy = folder.write("copy", text_of_file(path), 0600);
  const auto two = folder.write("two", text_of_file(path) + text_of_file(write_rank(folder, 1, {}, {5})), 0600);
  EXPECT_NE(refusal({text}).find("no trace"), std::string::npos);
  EXPECT_NE(refusal({empty}).find("no packet"), std::string::npos);
  EXPECT_NE(refusal({path, copy}).find("both"), std::string::npos);
  EXPECT_NE(refusal({two}).find("not of one rank"), std::string::npos);
  EXPECT_NE(refusal({}).find("found none"), std::string::npos);
  EXPECT_THROW(merge_traces({path}, path), ConfigError);
  EXPECT_THROW(merge_traces({folder.file("missing")}, merged), StorageError);
}

TEST(TraceMerge, RefusesAFileThatIsDamagedInTheMiddle) {
  const TemporaryFolder folder;
  const auto path = write_rank(folder, 0, {}, std::vector<std::int64_t>(4000, 5));
  std::string bytes = text_of_file(path);
  ASSERT_GT(bytes.size(), 150'000U);
  for (std::size_t i = 1000; i < 1020; ++i) bytes[i] = '\xff';
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THROW(merge_traces({path}, folder.file("merged")), ConfigError);
}

}  // namespace
}  // namespace tessera::observe
