#include <tessera/flight/clock.h>
#include <tessera/observe/observer.h>

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "observe/sinks.h"
#include "observe/trace_decoder.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

// How an observer treats a device that is behind the host, with one that does what a test says.

namespace tessera::observe {
namespace {

using ::tessera::testing::on_track;
using ::tessera::testing::read_trace;
using ::tessera::testing::TemporaryFolder;

/// Its marks are over when the test says so, at the times that it says.
class ScriptedDevice : public ObservedDevice {
 public:
  class Mark : public DeviceMark {
   public:
    explicit Mark(std::mutex& shared) : mutex_(shared) {}
    void come(std::optional<std::int64_t> time) {
      const std::lock_guard lock(mutex_);
      over_ = true;
      time_ = time;
    }
    bool is_over() override {
      const std::lock_guard lock(mutex_);
      return over_;
    }
    std::optional<std::int64_t> time_ns() override {
      const std::lock_guard lock(mutex_);
      return time_;
    }
    std::int64_t stream() const override { return 0; }

   private:
    std::mutex& mutex_;
    bool over_ = false;
    std::optional<std::int64_t> time_;
  };

  std::shared_ptr<DeviceMark> mark() override {
    const std::lock_guard lock(mutex_);
    marks_.push_back(std::make_shared<Mark>(mutex_));
    return marks_.back();
  }
  std::shared_ptr<DeviceMark> mark_behind(const DeviceMark& /*begin*/) override { return mark(); }
  std::optional<DeviceMemory> memory() override { return DeviceMemory{700, 900}; }
  void compare_clocks() override {}

  std::size_t num_marks() const {
    const std::lock_guard lock(mutex_);
    return marks_.size();
  }
  void come_to(std::size_t number, std::optional<std::int64_t> time) {
    const auto mark = [&] {
      const std::lock_guard lock(mutex_);
      return marks_.at(number);
    }();
    mark->come(time);
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Mark>> marks_;
};

constexpr std::int64_t kSecond = 1'000'000'000;

struct KeepingSink : Sink {
  explicit KeepingSink(std::vector<StepSummary>& place) : summaries(place) {}
  void take(const StepSummary& summary) override { summaries.push_back(summary); }
  std::vector<StepSummary>& summaries;
};

struct ObserverOfADevice : ::testing::Test {
  std::unique_ptr<Observer> make(const ObserveOptions& options = ObserveOptions().progress("off")) {
    auto observer = std::make_unique<Observer>(options, RunDescription{}, device);
    observer->add_sink(std::make_unique<KeepingSink>(summaries));
    observer->restart_clock();
    return observer;
  }

  const std::shared_ptr<ScriptedDevice> device = std::make_shared<ScriptedDevice>();
  std::vector<StepSummary> summaries;
};

TEST_F(ObserverOfADevice, GivesStepsTheTimeBetweenTheirMarks) {
  const auto observer = make();
  for (int step = 1; step <= 3; ++step) observer->record({.step = step});
  ASSERT_EQ(device->num_marks(), 4) << "one at the beginning, one for each step";
  device->come_to(0, 5 * kSecond);
  device->come_to(1, 7 * kSecond);
  device->come_to(2, 8 * kSecond);
  device->come_to(3, 12 * kSecond);
  observer->close();
  ASSERT_EQ(summaries.size(), 3);
  EXPECT_EQ(summaries[0].seconds, 2);
  EXPECT_EQ(summaries[1].seconds, 1);
  EXPECT_EQ(summaries[2].seconds, 4);
  for (const StepSummary& summary : summaries) {
    EXPECT_LT(summary.host_step_seconds().value(), 1);
    EXPECT_EQ(summary.device_memory->allocated_bytes, 700);
    EXPECT_EQ(summary.device_memory->peak_bytes, 900);
  }
}

TEST_F(ObserverOfADevice, WaitsAtTheEndForWhatTheDeviceStillDoes) {
  const auto observer = make();
  observer->record({.step = 1});
  device->come_to(0, kSecond);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    device->come_to(1, 4 * kSecond);
  });
  observer->close();
  late.join();
  ASSERT_EQ(summaries.size(), 1);
  EXPECT_EQ(summaries[0].seconds, 3);
}

TEST_F(ObserverOfADevice, IsDestroyedBesideADeviceThatHangs) {
  auto observer = make();
  observer->record({.step = 1});
  observer->record({.step = 2});
  device->come_to(0, kSecond);
  device->come_to(1, 2 * kSecond);
  const auto start = std::chrono::steady_clock::now();
  observer.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  ASSERT_EQ(summaries.size(), 2) << "none is lost";
  EXPECT_EQ(summaries[0].seconds, 1);
  EXPECT_LT(summaries[1].seconds, 1) << "the host's";
}

TEST_F(ObserverOfADevice, HasTheHostsTimesWhenTheDeviceFailed) {
  const auto observer = make();
  observer->record({.step = 1});
  device->come_to(0, kSecond);
  device->come_to(1, std::nullopt);
  observer->close();
  ASSERT_EQ(summaries.size(), 1);
  EXPECT_EQ(summaries[0].seconds, summaries[0].host_seconds);
}

TEST_F(ObserverOfADevice, LeavesTheTimeThatTheProgramMeasured) {
  const auto observer = make();
  observer->record({.step = 1, .seconds = 0.25});
  device->come_to(0, kSecond);
  device->come_to(1, 9 * kSecond);
  observer->close();
  ASSERT_EQ(summaries.size(), 1);
  EXPECT_EQ(summaries[0].seconds, 0.25);
}

TEST_F(ObserverOfADevice, AddsUpTheTimesOfSeveralSteps) {
  const TemporaryFolder folder;
  {
    Observer observer(ObserveOptions().progress("off").json(folder.file("log")).every(2), {}, device);
    observer.record({.step = 1});
    observer.record({.step = 2});
    for (int i = 0; i < 3; ++i) device->come_to(static_cast<std::size_t>(i), i * kSecond);
    observer.close();
  }
  const std::string text = ::tessera::testing::text_of_file(folder.file("log"));
  ::tessera::testing::expect_parts(
      text, {"\"step_seconds\":1.0,", "\"host_step_seconds\":", "\"device_bytes\":700,", "\"device_peak_bytes\":900"});
}

TEST_F(ObserverOfADevice, MarksNothingThatNobodyReads) {
  const TemporaryFolder folder;
  Observer observer(ObserveOptions().progress("off").json(folder.file("log")), {.rank = 1, .num_ranks = 2}, device);
  {
    const auto span = observer.span("forward");
  }
  observer.record({.step = 1});
  observer.restart_clock();
  observer.close();
  EXPECT_EQ(device->num_marks(), 0);
}

/// The inner span begins and ends at the times of the outer one, as far as a coarse clock tells.
TEST_F(ObserverOfADevice, NestsSpansThatHaveOneTime) {
  const TemporaryFolder folder;
  Observer observer(ObserveOptions().progress("off").trace(folder.file("t")), {}, device);
  {
    const auto outer = observer.span("outer");
    {
      const auto inner = observer.span("inner");
    }
    const auto second = observer.span("second");
  }
  ASSERT_EQ(device->num_marks(), 7);
  for (const auto& [mark, time] : {std::pair{0, 1}, {1, 5}, {2, 5}, {3, 6}, {4, 6}, {5, 9}, {6, 9}}) {
    device->come_to(static_cast<std::size_t>(mark), time * kSecond);
  }
  observer.close();
  const auto slices = on_track(read_trace(folder.file("t.rank0.pftrace")), 0, "device");
  ASSERT_EQ(slices.size(), 3);
  EXPECT_EQ(slices[0].name, "outer");
  EXPECT_EQ(slices[0].end_ns - slices[0].start_ns, 4 * kSecond);
  EXPECT_EQ(slices[1].name, "inner");
  EXPECT_EQ(slices[1].end_ns - slices[1].start_ns, kSecond);
  EXPECT_EQ(slices[2].name, "second");
}

TEST_F(ObserverOfADevice, TracesAStepOnTheDeviceAndOnTheHost) {
  const TemporaryFolder folder;
  Observer observer(ObserveOptions().progress("off").trace(folder.file("t")).trace_skip(1), {}, device);
  for (int step = 1; step <= 3; ++step) observer.record({.step = step, .loss = 0.5});
  ASSERT_EQ(device->num_marks(), 3) << "none of the step that is skipped";
  for (int i = 0; i < 3; ++i) device->come_to(static_cast<std::size_t>(i), (i + 1) * kSecond);
  observer.close();
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  EXPECT_EQ(on_track(slices, 0, "steps").size(), 2);
  const auto steps = on_track(slices, 0, "steps on the device");
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].name, "step 2");
  EXPECT_EQ(steps[0].start_ns, kSecond);
  EXPECT_EQ(steps[1].end_ns, 3 * kSecond);
  EXPECT_EQ(steps[1].annotations.at("loss"), steps[0].annotations.at("loss"));
}

TEST(FiguresOfADevice, AreShownWhereThereIsOne) {
  StepSummary summary;
  summary.last = {.step = 3};
  summary.seconds = 0.5;
  const Pace pace;
  EXPECT_EQ(progress_text(summary, pace, {}, 200).find("device"), std::string::npos);
  EXPECT_EQ(exposition(&summary, {}, 0).find("device"), std::string::npos);
  EXPECT_EQ(json_line(summary).find("device"), std::string::npos);
  EXPECT_EQ(json_line(summary).find("host"), std::string::npos);
  summary.host_seconds = 0.125;
  summary.device_memory = {3'000'000'000, 4'000'000'000};
  ::tessera::testing::expect_parts(progress_text(summary, pace, {}, 200),
                                   {"  device 3.00 GB  device peak 4.00 GB  mem "});
  ::tessera::testing::expect_parts(exposition(&summary, {}, 0),
                                   {"\ntessera_step_seconds 0.5\n", "\ntessera_host_step_seconds 0.125\n",
                                    "\ntessera_device_bytes 3e+09\n", "\ntessera_peak_device_bytes 4e+09\n"});
}

}  // namespace
}  // namespace tessera::observe
