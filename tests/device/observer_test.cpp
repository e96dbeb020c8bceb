#include <tessera/comm/make_observer.h>
#include <tessera/flight/clock.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/on_devices.h"
#include "observe/trace_decoder.h"
#include "support/temporary_folder.h"

// What an observer tells of a rank that trains on a device: time by events, memory by the device's allocator.

namespace tessera::testing {
namespace {

using at::Tensor;
using observe::StepSummary;
using std::chrono::milliseconds;

constexpr milliseconds kKernel{40};
constexpr std::int64_t kKernelNs = std::chrono::nanoseconds(kKernel).count();
constexpr double kKernelSeconds = 0.04;

/// `mul` takes a known time, all else none.
class ObserverOnDevices : public DeviceTest {
 protected:
  static void take_time() {
    sim::settings().duration = [](std::string_view op, std::size_t /*num_bytes*/) {
      return op == "mul" ? kKernel : milliseconds(0);
    };
  }
};

void compute(const Tensor& tensor, int num_kernels) {
  for (int i = 0; i < num_kernels; ++i) (void)tensor.mul(2);
}

struct Collector : observe::Sink {
  explicit Collector(std::vector<StepSummary>& place) : summaries(place) {}
  void take(const StepSummary& summary) override { summaries.push_back(summary); }
  std::vector<StepSummary>& summaries;
};

ObserveOptions silent() { return ObserveOptions().progress("off"); }

/// At least so long, and not so much longer that it could be another number of kernels.
void expect_kernels(double seconds, int num_kernels, const std::string& what) {
  EXPECT_GE(seconds, num_kernels * kKernelSeconds) << what;
  EXPECT_LT(seconds, (num_kernels + 0.75) * kKernelSeconds) << what;
}

TEST_F(ObserverOnDevices, MeasuresStepsByEventsAndDoesNotWait) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    std::vector<StepSummary> summaries;
    const auto observer = make_observer(world, silent(), {}, device);
    observer->add_sink(std::make_unique<Collector>(summaries));
    observer->restart_clock();
    take_time();
    const auto num_waits = sim::counts().num_host_waits;
    const auto start_ns = flight::now_ns();
    for (int step = 1; step <= 4; ++step) {
      compute(tensor, step);
      observer->record({.step = step, .tokens = 100});
    }
    const auto launched_ns = flight::now_ns() - start_ns;
    EXPECT_EQ(sim::counts().num_host_waits, num_waits);
    EXPECT_LT(launched_ns, 5 * kKernelNs) << "the device is busy for ten kernels";
    EXPECT_FALSE(c10::impl::VirtualGuardImpl(device.type()).getStream(device).query());
    observer->close();
    ASSERT_EQ(summaries.size(), 4);
    for (int step = 1; step <= 4; ++step) {
      const StepSummary& summary = summaries[static_cast<std::size_t>(step) - 1];
      EXPECT_EQ(summary.last.step, step);
      expect_kernels(summary.seconds, step, "step " + std::to_string(step));
      EXPECT_LT(summary.host_seconds.value(), kKernelSeconds);
      EXPECT_NEAR(summary.tokens_per_second(), 100 / summary.seconds, 1e-6);
    }
  });
}

/// A program whose host waits in each step sees its steps at once.
TEST_F(ObserverOnDevices, PassesAStepOnWhenTheDeviceHasDoneIt) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const TemporaryFolder folder;
    const Tensor tensor = at::ones({4}, device);
    const auto observer = make_observer(world, silent().json(folder.file("log")), {}, device);
    const auto num_lines = [&] {
      const std::string text = text_of_file(folder.file("log"));
      return std::count(text.begin(), text.end(), '\n') - 1;  // the first is the run's
    };
    sim::settings().duration = [](auto op, auto) { return op == "mul" ? milliseconds(600) : milliseconds(0); };
    observer->record({.step = 1});
    compute(tensor, 1);
    observer->record({.step = 2});
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(num_lines(), 1) << "the second is under way";
    sim::synchronise();
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(num_lines(), 2);
    observer->close();
    const std::string text = text_of_file(folder.file("log"));
    for (const char* const key : {"\"host_step_seconds\":", "\"device_bytes\":", "\"device_peak_bytes\":"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  });
}

TEST_F(ObserverOnDevices, CountsNoTimeBeforeTheClockIsRestarted) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    std::vector<StepSummary> summaries;
    const auto observer = make_observer(world, silent(), {}, device);
    observer->add_sink(std::make_unique<Collector>(summaries));
    take_time();
    compute(tensor, 3);
    observer->restart_clock();
    compute(tensor, 1);
    observer->record({.step = 1});
    observer->close();
    ASSERT_EQ(summaries.size(), 1);
    expect_kernels(summaries[0].seconds, 1, "behind an evaluation");
  });
}

TEST_F(ObserverOnDevices, TracesWhatTheDeviceDidInASpan) {
  const TemporaryFolder folder;
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    const auto options = silent().trace(folder.file("t")).trace_skip(1).trace_steps(2);
    const auto observer = make_observer(world, options, {}, device);
    take_time();
    for (int step = 1; step <= 4; ++step) {
      {
        const auto outer = observer->span("forward");
        compute(tensor, 1);
        const auto inner = observer->span("layer");
        compute(tensor, 1);
      }
      const auto backward = observer->span("backward");
      compute(tensor, 3);
      observer->record({.step = step});
    }
    observer->close();
  });
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  const auto steps = on_track(slices, 0, "steps on the device");
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].name, "step 2");
  EXPECT_EQ(steps[1].name, "step 3");
  const auto on_host = on_track(slices, 0, "compute");
  const auto spans = on_track(slices, 0, "device");
  ASSERT_EQ(on_host.size(), 5) << "the last span ends after the trace";
  ASSERT_EQ(spans.size(), 6);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const int num_kernels = std::vector<int>{2, 1, 3}[i % 3];
    EXPECT_EQ(spans[i].name, (std::vector<std::string>{"forward", "layer", "backward"}[i % 3]));
    expect_kernels(flight::seconds_of(spans[i].end_ns - spans[i].start_ns), num_kernels, spans[i].name);
    if (i < on_host.size()) {
      EXPECT_EQ(on_host[i].name, spans[i].name);
      EXPECT_GT(spans[i].start_ns, on_host[i].start_ns) << "before it was launched";
    }
  }
  expect_kernels(flight::seconds_of(steps[1].end_ns - steps[1].start_ns), 5, "a step");
  EXPECT_LE(steps[1].start_ns, spans[3].start_ns);
}

/// A span whose work is on another stream than that of the steps.
TEST_F(ObserverOnDevices, TracesEachStreamApart) {
  const TemporaryFolder folder;
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    sim::synchronise();
    const auto observer = make_observer(world, silent().trace(folder.file("t")), {}, device);
    take_time();
    {
      const auto main = observer->span("main");
      compute(tensor, 2);
      const c10::StreamGuard on(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
      const Tensor own = at::ones({4}, device);
      const auto side = observer->span("side");
      compute(own, 1);
    }
    observer->close();
  });
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  const auto main = on_track(slices, 0, "device");
  const auto side = on_track(slices, 0, "device, stream 2");
  const auto& first = main.empty() || main[0].name == "main" ? main : side;
  const auto& second = &first == &main ? side : main;
  ASSERT_EQ(first.size(), 1);
  ASSERT_EQ(second.size(), 1);
  expect_kernels(flight::seconds_of(first[0].end_ns - first[0].start_ns), 2, "main");
  expect_kernels(flight::seconds_of(second[0].end_ns - second[0].start_ns), 1, "side");
}

c10::CachingDeviceAllocator::DeviceStats stats_of(const at::Device& device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

TEST_F(ObserverOnDevices, TellsWhatTensorsOccupyNowAndAtMost) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
    const auto before = stats_of(device).allocated_bytes[0].current;
    const Tensor kept = at::empty({1 << 20}, at::TensorOptions(device).dtype(at::kByte));
    {
      const Tensor passing = at::empty({3 << 20}, at::TensorOptions(device).dtype(at::kByte));
    }
    std::vector<StepSummary> summaries;
    const auto observer = make_observer(world, silent(), {}, device);
    observer->add_sink(std::make_unique<Collector>(summaries));
    observer->record({.step = 1});
    observer->close();
    ASSERT_EQ(summaries.size(), 1);
    ASSERT_TRUE(summaries[0].device_memory);
    EXPECT_EQ(summaries[0].device_memory->allocated_bytes, before + (1 << 20));
    EXPECT_EQ(summaries[0].device_memory->peak_bytes, before + (4 << 20));
    const auto in_use = static_cast<std::int64_t>(sim::bytes_in_use(device.index()));
    EXPECT_EQ(summaries[0].device_memory->allocated_bytes, in_use);
  });
}

TEST_F(ObserverOnDevices, KeepsRanksOfOneProcessApart) {
  constexpr int kNumRanks = 3;
  std::vector<std::vector<StepSummary>> summaries(kNumRanks);
  std::vector<std::int64_t> expected(kNumRanks);
  on_devices(kNumRanks, [&](const World& world, const at::Device& device) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Tensor kept = at::ones({(world.rank() + 1) << 20}, at::TensorOptions(device).dtype(at::kByte));
    const Tensor tensor = at::ones({4}, device);
    const auto observer = make_observer(world, silent());
    ASSERT_TRUE(observer->device()) << "it is in use";
    observer->add_sink(std::make_unique<Collector>(summaries[rank]));
    world.comm().barrier();
    if (world.rank() == 0) take_time();
    world.comm().barrier();
    observer->restart_clock();
    compute(tensor, world.rank() + 1);
    observer->record({.step = 1});
    sim::synchronise();
    expected[rank] = stats_of(device).allocated_bytes[0].current;
    observer->close();
  });
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const auto& mine = summaries[static_cast<std::size_t>(rank)];
    ASSERT_EQ(mine.size(), 1);
    expect_kernels(mine[0].seconds, rank + 1, "rank " + std::to_string(rank));
    EXPECT_EQ(mine[0].device_memory->allocated_bytes, expected[static_cast<std::size_t>(rank)]);
    EXPECT_GE(mine[0].device_memory->allocated_bytes, (rank + 1) << 20);
    EXPECT_LT(mine[0].device_memory->allocated_bytes, (rank + 2) << 20);
  }
}

/// A program on the CPU, beside devices that nobody uses.
TEST_F(ObserverOnDevices, AsksNoDeviceThatIsNotInUse) {
  const auto unused = static_cast<c10::DeviceIndex>(sim::settings().num_devices - 1);
  run_threads(1, [&](const World& world) {
    at::accelerator::setDeviceIndex(unused);
    const auto before = sim::counts();
    for (const auto& device : {std::optional<at::Device>(), std::optional<at::Device>(at::kCPU)}) {
      std::vector<StepSummary> summaries;
      const auto observer = make_observer(world, silent(), {}, device);
      EXPECT_FALSE(observer->device());
      observer->add_sink(std::make_unique<Collector>(summaries));
      observer->record({.step = 1});
      observer->close();
      ASSERT_EQ(summaries.size(), 1);
      EXPECT_FALSE(summaries[0].host_seconds);
      EXPECT_FALSE(summaries[0].device_memory);
    }
    EXPECT_EQ(sim::counts().num_host_waits, before.num_host_waits);
    EXPECT_EQ(sim::counts().num_launches, before.num_launches);
    EXPECT_EQ(stats_of(sim::device(unused)).allocated_bytes[0].peak, 0);
    at::accelerator::setDeviceIndex(0);
  });
}

}  // namespace
}  // namespace tessera::testing
