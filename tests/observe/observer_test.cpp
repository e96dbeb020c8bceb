#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/observe/observer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "observe/trace_decoder.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::observe {
namespace {

using ::tessera::testing::message_of;
using ::tessera::testing::on_track;
using ::tessera::testing::read_trace;
using ::tessera::testing::TemporaryFolder;
using ::tessera::testing::text_of_file;

ObserveOptions quiet() { return ObserveOptions().progress("off"); }

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::istringstream lines(text_of_file(path));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

TEST(Observer, WritesEveryRecord) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log.jsonl");
  Observer observer(quiet().json(path));
  constexpr int kSteps = 500;
  for (int step = 1; step <= kSteps; ++step) observer.record({.step = step, .loss = 1.0 / step, .seconds = 0.25});
  observer.close();
  const auto objects = lines_of(path);
  ASSERT_EQ(objects.size(), kSteps + 1U);
  for (int step = 1; step <= kSteps; ++step) {
    EXPECT_EQ(objects[static_cast<std::size_t>(step)]["step"], step);
    EXPECT_EQ(objects[static_cast<std::size_t>(step)]["loss"], 1.0 / step);
    EXPECT_EQ(objects[static_cast<std::size_t>(step)]["step_seconds"], 0.25);
    EXPECT_GT(objects[static_cast<std::size_t>(step)]["resident_bytes"], 0);
  }
}

TEST(Observer, PutsSeveralStepsIntoOneLine) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log.jsonl");
  Observer observer(quiet().json(path).every(4));
  for (int step = 1; step <= 10; ++step) observer.record({.step = step, .tokens = 5, .seconds = 1.0});
  observer.close();
  const auto objects = lines_of(path);
  ASSERT_EQ(objects.size(), 4U);
  EXPECT_EQ(objects[1]["step"], 4);
  EXPECT_EQ(objects[1]["tokens"], 20);
  EXPECT_EQ(objects[2]["step"], 8);
  EXPECT_EQ(objects[3]["step"], 10);
  EXPECT_EQ(objects[3]["tokens"], 10);
}

TEST(Observer, MeasuresStepsFromRecordToRecord) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log.jsonl");
  Observer observer(quiet().json(path));
  observer.record({.step = 1});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  observer.record({.step = 2});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto restart = flight::now_ns();
  observer.restart_clock();
  observer.record({.step = 3});
  const auto end = flight::now_ns();
  observer.close();
  const auto objects = lines_of(path);
  EXPECT_GE(objects[2]["step_seconds"], 0.049);
  EXPECT_LE(objects[3]["step_seconds"], flight::seconds_of(end - restart))
      << "what came before restart_clock() is no part of the step";
}

TEST(Observer, IsSilentOnOtherRanksButForTheTrace) {
  const TemporaryFolder folder;
  {
    Observer observer(
        quiet().json(folder.file("j")).tensorboard(folder.file("t")).prometheus("0").trace(folder.file("trace")),
        {.rank = 1, .num_ranks = 2});
    EXPECT_EQ(observer.prometheus_address(), "");
    observer.record({.step = 1});
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_EQ(names, std::vector<std::string>{"trace.rank1.pftrace"});
}

TEST(Observer, TracesOnlyTheStepsThatWereAskedFor) {
  const TemporaryFolder folder;
  Observer observer(quiet().trace(folder.file("t")).trace_skip(2).trace_steps(3));
  for (int step = 1; step <= 10; ++step) {
    {
      const auto span = observer.span("forward");
    }
    observer.record({.step = step});
  }
  observer.close();
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  const auto steps = on_track(slices, 0, "steps");
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps.front().name, "step 3");
  EXPECT_EQ(steps.back().name, "step 5");
  EXPECT_EQ(on_track(slices, 0, "compute").size(), 3U);
}

/// Fails, or holds everything up.
struct TestSink : Sink {
  explicit TestSink(std::function<void()> given) : act(std::move(given)) {}
  void take(const StepSummary& /*summary*/) override { act(); }
  std::function<void()> act;
};

TEST(Observer, GoesOnWhenASinkFailsAndSaysSoAtTheEnd) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log.jsonl");
  Observer observer(quiet().json(path));
  observer.add_sink(std::make_unique<TestSink>([] { throw StorageError("the disk is full"); }));
  for (int step = 1; step <= 3; ++step) observer.record({.step = step});
  EXPECT_EQ(message_of<StorageError>([&] { observer.close(); }),
            "a sink of the program's own end here: the disk is full");
  EXPECT_EQ(lines_of(path).size(), 4U);
}

TEST(Observer, NeverWaitsForASlowSink) {
  Observer observer(quiet());
  std::promise<void> entered;
  std::promise<void> gate;
  std::atomic<int> num_taken = 0;
  observer.add_sink(std::make_unique<TestSink>([&] {
    if (num_taken++ == 0) {
      entered.set_value();
      gate.get_future().wait();
    }
  }));
  observer.record({.step = 1});
  entered.get_future().wait();
  constexpr int kMany = 10'000;
  for (int step = 2; step <= kMany + 1; ++step) observer.record({.step = step});
  EXPECT_GT(observer.num_dropped(), 0U);
  gate.set_value();
  const auto message = message_of<StorageError>([&] { observer.close(); });
  EXPECT_NE(message.find("left out"), std::string::npos);
  EXPECT_EQ(static_cast<std::uint64_t>(num_taken) + observer.num_dropped(), kMany + 1U);
}

TEST(Observer, RefusesFilesThatCannotBeMade) {
  const TemporaryFolder folder;
  folder.write("file", "", 0600);
  EXPECT_THROW(Observer(quiet().json(folder.file("file/x"))), StorageError);
  EXPECT_THROW(Observer(quiet().tensorboard(folder.file("file"))), StorageError);
  EXPECT_THROW(Observer(quiet().trace(folder.file("file/x"))), StorageError);
}

TEST(Observer, ServesPrometheusWhileItLives) {
  Observer observer(quiet().prometheus("0"));
  EXPECT_EQ(observer.prometheus_address().find("127.0.0.1:"), 0U);
  observer.close();
  EXPECT_EQ(observer.prometheus_address(), "");
}

TEST(Observer, ShowsPlainLinesWhenAsked) {
  ::testing::internal::CaptureStderr();
  {
    Observer observer(ObserveOptions().progress("plain").plain_every(std::chrono::hours(1)), {.total_steps = 4});
    for (int step = 1; step <= 3; ++step) observer.record({.step = step, .loss = 2.0, .seconds = 0.5});
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("step 1/4 25%  loss 2.0000  500 ms/step  ETA 0:02  mem "), 0U) << text;
  EXPECT_NE(text.find("\nstep 3/4 75%"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Observer, IsQuietWhereThereIsNoTerminal) {
  ::testing::internal::CaptureStderr();
  {
    Observer observer(ObserveOptions(), {.total_steps = 4});
    observer.record({.step = 1, .loss = 2.0});
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tessera::observe
