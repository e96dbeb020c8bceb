#include <tessera/flight/recorder.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "support/sanitized.h"

namespace tessera::flight {
namespace {

constexpr double kLimitSeconds = 1e-6 * testing::kSanitizerSlowdown;

CallStart start_of(std::uint32_t group, std::uint64_t sequence) {
  CallStart call;
  call.group = group;
  call.sequence = sequence;
  call.operation = "all_reduce";
  call.dtype = "Float";
  call.where = std::source_location::current();
  return call;
}

TEST(Recorder, KeepsTheLatestInOrderAndForgetsTheRest) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0, 1});
  constexpr std::uint64_t kCalls = Recorder::kCapacity + 10;
  std::uint64_t first_ticket = 0;
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    const auto ticket = recorder.begin(start_of(group, i + 1));
    if (i == 0) first_ticket = ticket;
  }
  recorder.end(first_ticket, true);  // long overwritten: must not touch the one in its place
  const auto calls = recorder.recent();
  ASSERT_EQ(calls.size(), Recorder::kCapacity);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].sequence, kCalls - calls.size() + i + 1);
    EXPECT_EQ(calls[i].state, CallState::kStarted);
    EXPECT_EQ(calls[i].group, "g");
  }
}

struct Listener : CallListener {
  void call_ended(const CallRecord& call, std::int64_t done_ns, std::int64_t blocked_ns) override {
    calls.push_back(call);
    done.push_back(done_ns);
    blocked.push_back(blocked_ns);
  }
  std::vector<CallRecord> calls;
  std::vector<std::int64_t> done;
  std::vector<std::int64_t> blocked;
};

TEST(Recorder, TellsItsListenerOfEveryCallThatEnds) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0, 1});
  EXPECT_FALSE(recorder.is_heard());
  auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(recorder.listen(listener));
  EXPECT_TRUE(recorder.is_heard());
  constexpr std::uint64_t kCalls = 3 * Recorder::kCapacity;
  for (std::uint64_t i = 1; i <= kCalls; ++i) recorder.end(recorder.begin(start_of(group, i)), i % 2 == 0);
  ASSERT_EQ(listener->calls.size(), kCalls);
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    const CallRecord& call = listener->calls[i - 1];
    EXPECT_EQ(call.sequence, i);
    EXPECT_EQ(call.group, "g");
    EXPECT_EQ(call.state, i % 2 == 0 ? CallState::kFailed : CallState::kDone);
    EXPECT_EQ(listener->done[i - 1], call.ended_ns);
  }
}

TEST(Recorder, TellsWhenACallWasDoneBeforeItWasWaitedFor) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0});
  auto listener = std::make_shared<Listener>();
  recorder.listen(listener);
  const auto ticket = recorder.begin(start_of(group, 1));
  const std::int64_t done_ns = recorder.recent().back().started_ns + 1;
  recorder.end(ticket, false, done_ns, 25);
  ASSERT_EQ(listener->done.size(), 1U);
  EXPECT_EQ(listener->done[0], done_ns);
  EXPECT_EQ(listener->blocked[0], 25);
  EXPECT_GE(listener->calls[0].ended_ns, done_ns);
}

TEST(Recorder, HasOneListenerAtATime) {
  Recorder recorder;
  auto first = std::make_shared<Listener>();
  auto second = std::make_shared<Listener>();
  EXPECT_TRUE(recorder.listen(first));
  EXPECT_FALSE(recorder.listen(second));
  first.reset();
  recorder.end(recorder.begin(start_of(recorder.add_group("g", {0}), 1)), false);
  EXPECT_FALSE(recorder.is_heard());
  EXPECT_TRUE(recorder.listen(second));
}

TEST(Recorder, KnowsTheOldestCallUnderWay) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0});
  EXPECT_FALSE(recorder.oldest_under_way());
  const auto first = recorder.begin(start_of(group, 1));
  const auto second = recorder.begin(start_of(group, 2));
  EXPECT_EQ(recorder.oldest_under_way()->sequence, 1U);
  recorder.end(second, false);
  EXPECT_EQ(recorder.oldest_under_way()->sequence, 1U);
  recorder.end(first, false);
  EXPECT_FALSE(recorder.oldest_under_way());
  recorder.begin(start_of(group, 3));
  EXPECT_EQ(recorder.oldest_under_way()->sequence, 3U);
}

/// A rank that waits for a message of one that dies: the message was to be received before the last one was sent.
TEST(Recorder, KnowsWhichCallEndedLast) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0, 1});
  CallStart message = start_of(group, 1);
  message.is_collective = false;
  const auto received_ahead = recorder.begin(message);
  message.sequence = 2;
  const auto sent = recorder.begin(message);
  recorder.end(sent, false);
  recorder.set_awaited(received_ahead, false);
  EXPECT_EQ(current_call(recorder.snapshot())->sequence, 2U);
  recorder.end(received_ahead, /*failed=*/true);
  EXPECT_EQ(current_call(recorder.snapshot())->sequence, 1U);
}

TEST(Recorder, KnowsWhichMessagesAreWaitedFor) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0, 1});
  CallStart message = start_of(group, 1);
  message.is_collective = false;
  message.peer = 1;
  const auto ticket = recorder.begin(message);
  EXPECT_EQ(recorder.oldest_under_way()->peer, 1);
  recorder.set_awaited(ticket, false);
  EXPECT_FALSE(recorder.oldest_under_way());
  EXPECT_EQ(current_call(recorder.snapshot()), nullptr);
  const auto collective = recorder.begin(start_of(group, 2));
  recorder.set_awaited(ticket, true);
  EXPECT_EQ(recorder.oldest_under_way()->sequence, 2U);
  recorder.end(collective, false);
  EXPECT_EQ(recorder.oldest_under_way()->sequence, 1U);
}

TEST(Recorder, KnowsTheTask) {
  Recorder recorder;
  EXPECT_FALSE(recorder.task());
  const auto none = recorder.begin_task("a step");
  EXPECT_FALSE(none);
  const auto step = recorder.begin_task("a part of it");
  EXPECT_EQ(recorder.snapshot().task->what, "a part of it");
  recorder.end_task(step);
  EXPECT_EQ(recorder.task(), step);
  recorder.end_task(none);
  EXPECT_FALSE(recorder.snapshot().task);
}

TEST(Recorder, CutsWhatDoesNotFit) {
  Recorder recorder;
  const std::string name = std::string(300, 'a') + "end";
  std::vector<int> ranks;
  for (int i = 0; i < 200; ++i) ranks.push_back(i * i);
  const auto group = recorder.add_group(name, ranks);
  auto call = start_of(group, 1);
  const std::vector<std::int64_t> shape(20, 7);
  call.shape = shape;
  recorder.begin(call);
  const auto snapshot = recorder.snapshot();
  EXPECT_TRUE(snapshot.groups.at(0).name.ends_with("aend"));
  EXPECT_EQ(snapshot.groups.at(0).size, 200);
  EXPECT_GT(snapshot.groups.at(0).ranks.size(), 20U);
  EXPECT_EQ(snapshot.calls.at(0).shape, std::vector<std::int64_t>(6, 7));
}

TEST(Recorder, SurvivesMoreGroupsThanItHasRoomFor) {
  Recorder recorder;
  std::uint32_t group = 0;
  for (int i = 0; i < 300; ++i) group = recorder.add_group("g" + std::to_string(i), {i});
  recorder.begin(start_of(group, 1));
  EXPECT_EQ(recorder.recent().at(0).group, "?");
}

TEST(Recorder, TakesCallsOfManyThreads) {
  Recorder recorder;
  const auto group = recorder.add_group("g", {0});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) recorder.end(recorder.begin(start_of(group, 1)), false);
    });
  }
  for (int i = 0; i < 50; ++i) recorder.snapshot();
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(recorder.oldest_under_way());
  EXPECT_EQ(recorder.recent().size(), Recorder::kCapacity);
}

TEST(Recorder, CostsLessThanAMicrosecond) {
  Recorder recorder;
  const auto group = recorder.add_group("world", {0, 1});
  const std::vector<std::int64_t> shape = {1024, 1024};
  double best = 1;
  for (int round = 0; round < 20; ++round) {
    constexpr int kCalls = 5000;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      auto call = start_of(group, static_cast<std::uint64_t>(i));
      call.shape = shape;
      recorder.end(recorder.begin(call), false);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / kCalls);
  }
  std::printf("recording a call takes %.0f ns\n", best * 1e9);
  EXPECT_LT(best, kLimitSeconds);
}

TEST(CallRecordText, ReadsLikeASentence) {
  CallRecord record;
  record.sequence = 12;
  record.group = "world";
  record.operation = "all_reduce";
  record.dtype = "Float";
  record.shape = {32, 16};
  record.file = "train.cpp";
  record.line = 40;
  record.state = CallState::kDone;
  EXPECT_EQ(to_string(record), "all_reduce #12 of group world, Float [32, 16], at train.cpp:40 (done)");
  EXPECT_EQ(signature(record), "all_reduce Float [32, 16]");
}

}  // namespace
}  // namespace tessera::flight
