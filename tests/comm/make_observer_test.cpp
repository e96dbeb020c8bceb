#include <tessera/comm/make_observer.h>
#include <tessera/core/error.h>
#include <tessera/observe/tracer.h>

#include <ATen/Functions.h>

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "observe/trace_decoder.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::read_trace;
using testing::Slice;
using testing::TemporaryFolder;

ObserveOptions traced(const TemporaryFolder& folder) {
  return ObserveOptions().progress("off").trace(folder.file("t"));
}

std::vector<Slice> merged(const TemporaryFolder& folder) {
  observe::merge_traces({folder.file("t.rank0.pftrace"), folder.file("t.rank1.pftrace")}, folder.file("merged"));
  return read_trace(folder.file("merged"));
}

std::vector<Slice> calls_of(const std::vector<Slice>& slices, int rank, const std::string& operation) {
  std::vector<Slice> calls;
  for (const Slice& slice : slices) {
    if (slice.rank == rank && slice.category == "communication" && slice.name == operation) calls.push_back(slice);
  }
  return calls;
}

TEST(MakeObserver, TracesEveryCallOfEveryRank) {
  const TemporaryFolder folder;
  constexpr std::size_t kCalls = 1500;  // more than the recorder keeps
  run_threads(2, [&](const World& world) {
    auto observer = make_observer(world, traced(folder));
    for (std::size_t i = 0; i < kCalls; ++i) world.comm().all_reduce(at::ones({4}));
    world.comm().split({0, 1}, "pair").broadcast(at::ones({2, 3}), 0);
    observer->close();
  });
  const auto slices = merged(folder);
  for (int rank = 0; rank < 2; ++rank) {
    const auto calls = calls_of(slices, rank, "all_reduce");
    EXPECT_EQ(calls.size(), kCalls);
    std::set<std::string> numbers;
    for (const Slice& call : calls) numbers.insert(call.annotations.at("number"));
    EXPECT_EQ(numbers.size(), kCalls);
    const auto broadcasts = calls_of(slices, rank, "broadcast");
    ASSERT_EQ(broadcasts.size(), 1U);
    EXPECT_EQ(broadcasts[0].annotations.at("tensor"), "Float [2, 3]");
    EXPECT_NE(broadcasts[0].annotations.at("group").find("pair"), std::string::npos);
    EXPECT_TRUE(calls_of(slices, rank, "send").empty()) << "comparing the clocks is no part of the run";
  }
}

TEST(MakeObserver, ShowsWhenACallWasDoneNotWhenItWasWaitedFor) {
  const TemporaryFolder folder;
  constexpr std::int64_t kPause = 500'000'000;
  run_threads(2, [&](const World& world) {
    auto observer = make_observer(world, traced(folder));
    Work work = world.comm().all_reduce_async(at::ones({4}));
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPause));
    work.wait();
    observer->close();
  });
  const auto slices = merged(folder);
  for (int rank = 0; rank < 2; ++rank) {
    const auto calls = calls_of(slices, rank, "all_reduce");
    ASSERT_EQ(calls.size(), 1U);
    const auto waited = std::stoll(calls[0].annotations.at("returned_after_ns"));
    EXPECT_GE(waited, kPause);
    EXPECT_LT(calls[0].end_ns - calls[0].start_ns, waited);
    EXPECT_LT(std::stoll(calls[0].annotations.at("blocked_ns")), kPause) << "the pause was the program's own";
  }
}

TEST(MakeObserver, ShowsHowLongACallKeptItsCaller) {
  const TemporaryFolder folder;
  constexpr std::int64_t kLate = 300'000'000;
  run_threads(2, [&](const World& world) {
    auto observer = make_observer(world, traced(folder));
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::nanoseconds(kLate));
    Work work = world.comm().all_reduce_async(at::ones({4}));
    work.wait();
    observer->close();
  });
  const auto slices = merged(folder);
  const auto blocked = [&](int rank) {
    return std::stoll(calls_of(slices, rank, "all_reduce").at(0).annotations.at("blocked_ns"));
  };
  EXPECT_GE(blocked(0), kLate / 2);
  EXPECT_LT(blocked(1), blocked(0));
}

TEST(MakeObserver, ComparesClocksAgain) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    auto observer = make_observer(world, traced(folder));
    compare_clocks(world, *observer);
    observer->close();
  });
  const auto slices = merged(folder);
  const auto is_clock = [](const Slice& slice) { return slice.rank == 1 && slice.name == "clock comparison"; };
  EXPECT_EQ(std::count_if(slices.begin(), slices.end(), is_clock), 2);
}

TEST(MakeObserver, RefusesASecondTraceOfOneWorld) {
  const TemporaryFolder folder;
  run_threads(1, [&](const World& world) {
    auto first = make_observer(world, traced(folder));
    const auto message = testing::message_of<ConfigError>(
        [&] { make_observer(world, ObserveOptions().progress("off").trace(folder.file("u"))); });
    testing::expect_parts(message, {"rank 0", "another observer"});
    first.reset();
    make_observer(world, traced(folder));
  });
}

TEST(MakeObserver, TakesTheRanksFromTheWorld) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    make_observer(world, ObserveOptions().progress("off").json(folder.file("log")), {.rank = 7, .num_ranks = 9});
  });
  EXPECT_NE(testing::text_of_file(folder.file("log")).find("\"ranks\":2"), std::string::npos);
}

}  // namespace
}  // namespace tessera
