#include <tessera/comm/make_observer.h>
#include <tessera/flight/clock.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/on_devices.h"
#include "device/scripted_kernels.h"
#include "observe/trace_decoder.h"
#include "support/sim_device/sim_device.h"
#include "support/temporary_folder.h"

// What an observer tells of a rank that trains on a device: time by events, memory by the device's allocator.

namespace tessera::testing {
namespace {

using at::Tensor;
using observe::StepSummary;
using std::chrono::milliseconds;

class ObserverOnDevices : public DeviceTest {};

std::vector<TimedKernel> compute(const Tensor& tensor, int num_kernels) {
  std::vector<TimedKernel> kernels;
  for (int i = 0; i < num_kernels; ++i) kernels.emplace_back(tensor);
  return kernels;
}

struct Collector : observe::Sink {
  explicit Collector(std::vector<StepSummary>& place) : summaries(place) {}
  void take(const StepSummary& summary) override { summaries.push_back(summary); }
  std::vector<StepSummary>& summaries;
};

ObserveOptions silent() { return ObserveOptions().progress("off"); }

/// Between two marks: all of `kernels`, and nothing of what the stream had before and behind them. Kernels are over.
void expect_encloses(double seconds, const TimedKernel& before, const std::vector<TimedKernel>& kernels,
                     const TimedKernel& behind) {
  constexpr double kRounding = 1e-6;
  EXPECT_GE(seconds, flight::seconds_of(kernels.back().end_ns() - kernels.front().begin_ns()) - kRounding);
  EXPECT_LE(seconds, flight::seconds_of(behind.begin_ns() - before.end_ns()) + kRounding);
}

double seconds_of(const Slice& slice) { return flight::seconds_of(slice.end_ns - slice.start_ns); }

TEST_F(ObserverOnDevices, MeasuresStepsByEventsAndDoesNotWait) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    std::vector<StepSummary> summaries;
    const auto observer = make_observer(world, silent(), {}, device);
    observer->add_sink(std::make_unique<Collector>(summaries));
    Gate gate(tensor);
    std::vector<std::vector<TimedKernel>> kernels = {compute(tensor, 1)};
    observer->restart_clock();
    const auto num_waits = sim::counts().num_host_waits;
    for (int step = 1; step <= 4; ++step) {
      kernels.push_back(compute(tensor, step));
      observer->record({.step = step, .tokens = 100});
    }
    kernels.push_back(compute(tensor, 1));
    EXPECT_EQ(sim::counts().num_host_waits, num_waits);
    EXPECT_FALSE(c10::impl::VirtualGuardImpl(device.type()).getStream(device).query());
    gate.open();
    observer->close();
    sim::synchronise();
    ASSERT_EQ(summaries.size(), 4);
    for (std::size_t step = 1; step <= 4; ++step) {
      const StepSummary& summary = summaries[step - 1];
      EXPECT_EQ(summary.last.step, step);
      expect_encloses(summary.seconds, kernels[step - 1].back(), kernels[step], kernels[step + 1].front());
      EXPECT_GT(summary.host_seconds.value(), 0);
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
    observer->record({.step = 1});
    Gate gate(tensor);
    observer->record({.step = 2});
    while (num_lines() < 1) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(num_lines(), 1) << "the second is under way";
    gate.open();
    while (num_lines() < 2) std::this_thread::yield();
    observer->close();
    const std::string text = text_of_file(folder.file("log"));
    for (const char* const key : {"\"host_step_seconds\":", "\"device_bytes\":", "\"device_peak_bytes\":"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  });
}

/// Its clock is compared with the host's behind what the device has to do.
TEST_F(ObserverOnDevices, BeginsOnABusyDevice) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    const auto kernels = compute(tensor, 3);
    const auto observer = make_observer(world, silent(), {}, device);
    EXPECT_TRUE(observer->device());
    EXPECT_GT(kernels.back().end_ns(), 0) << "it was waited for";
    observer->close();
  });
}

TEST_F(ObserverOnDevices, CountsNoTimeBeforeTheClockIsRestarted) {
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    std::vector<StepSummary> summaries;
    const auto observer = make_observer(world, silent(), {}, device);
    observer->add_sink(std::make_unique<Collector>(summaries));
    const auto evaluation = compute(tensor, 3);
    observer->restart_clock();
    const auto step = compute(tensor, 1);
    observer->record({.step = 1});
    const TimedKernel behind(tensor);
    observer->close();
    sim::synchronise();
    ASSERT_EQ(summaries.size(), 1);
    expect_encloses(summaries[0].seconds, evaluation.back(), step, behind);
  });
}

TEST_F(ObserverOnDevices, TracesWhatTheDeviceDidInASpan) {
  const TemporaryFolder folder;
  std::vector<TimedKernel> kernels;  // five a step
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    const auto options = silent().trace(folder.file("t")).trace_skip(1).trace_steps(2);
    const auto observer = make_observer(world, options, {}, device);
    for (int step = 1; step <= 4; ++step) {
      {
        const auto outer = observer->span("forward");
        kernels.emplace_back(tensor);
        const auto inner = observer->span("layer");
        kernels.emplace_back(tensor);
      }
      const auto backward = observer->span("backward");
      for (int i = 0; i < 3; ++i) kernels.emplace_back(tensor);
      observer->record({.step = step});
    }
    observer->close();
  });
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  const auto steps = on_track(slices, 0, "steps on the device");
  const auto on_host = on_track(slices, 0, "compute");
  const auto spans = on_track(slices, 0, "device");
  ASSERT_EQ(steps.size(), 2);
  ASSERT_EQ(on_host.size(), 5) << "the last span ends after the trace";
  ASSERT_EQ(spans.size(), 6);
  const auto expect_kernels = [&](const Slice& slice, std::size_t step, std::size_t first, std::size_t count) {
    const auto begin = kernels.begin() + static_cast<std::ptrdiff_t>(5 * step + first);
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    expect_encloses(seconds_of(slice), *(begin - 1), {begin, end}, *end);
  };
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].name, (std::vector<std::string>{"forward", "layer", "backward"}[i % 3]));
    const auto [first, count] = std::vector<std::pair<std::size_t, std::size_t>>{{0, 2}, {1, 1}, {2, 3}}[i % 3];
    expect_kernels(spans[i], 1 + i / 3, first, count);
    if (i < on_host.size()) EXPECT_EQ(on_host[i].name, spans[i].name);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].name, "step " + std::to_string(i + 2));
    expect_kernels(steps[i], 1 + i, 0, 5);
    EXPECT_LE(steps[i].start_ns, spans[3 * i].start_ns);
  }
}

/// A span whose work is on another stream than that of the steps.
TEST_F(ObserverOnDevices, TracesEachStreamApart) {
  const TemporaryFolder folder;
  std::vector<TimedKernel> on_main;
  std::vector<TimedKernel> on_side;
  on_devices(1, [&](const World& world, const at::Device& device) {
    const Tensor tensor = at::ones({4}, device);
    const c10::Stream side_stream = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    const Tensor own = [&] {
      const c10::StreamGuard on(side_stream);
      Tensor made = at::ones({4}, device);
      on_side.emplace_back(made);
      return made;
    }();
    const auto observer = make_observer(world, silent().trace(folder.file("t")), {}, device);
    on_main.emplace_back(tensor);
    {
      const auto main = observer->span("main");
      for (int i = 0; i < 2; ++i) on_main.emplace_back(tensor);
      const c10::StreamGuard on(side_stream);
      const auto side = observer->span("side");
      on_side.emplace_back(own);
    }
    on_main.emplace_back(tensor);
    const c10::StreamGuard on(side_stream);
    on_side.emplace_back(own);
    observer->close();
  });
  const auto slices = read_trace(folder.file("t.rank0.pftrace"));
  auto main = on_track(slices, 0, "device");
  auto side = on_track(slices, 0, "device, stream 2");
  ASSERT_EQ(main.size(), 1);
  ASSERT_EQ(side.size(), 1);
  if (main[0].name == "side") std::swap(main, side);  // the one that the device came to first has the first track
  EXPECT_EQ(main[0].name, "main");
  EXPECT_EQ(side[0].name, "side");
  expect_encloses(seconds_of(main[0]), on_main[0], {on_main[1], on_main[2]}, on_main[3]);
  expect_encloses(seconds_of(side[0]), on_side[0], {on_side[1]}, on_side[2]);
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
    const TimedKernel before(tensor);
    observer->restart_clock();
    const auto kernels = compute(tensor, world.rank() + 1);
    observer->record({.step = 1});
    const TimedKernel behind(tensor);
    sim::synchronise();
    expected[rank] = stats_of(device).allocated_bytes[0].current;
    observer->close();
    ASSERT_EQ(summaries[rank].size(), 1);
    expect_encloses(summaries[rank][0].seconds, before, kernels, behind);
  });
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const auto& mine = summaries[static_cast<std::size_t>(rank)];
    ASSERT_EQ(mine.size(), 1);
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
