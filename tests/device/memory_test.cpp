#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_memory.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/thread_memory.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/adamw.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "device/on_devices.h"
#include "parity/models.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/sim_device/sim_device.h"

// How much memory of a device sharded training takes: what the guide's table says, whatever the delays. And how it is
// counted.

namespace tessera::testing {
namespace {

using at::Tensor;

class MemoryOfDevices : public DeviceTest {};

// Enough units that a hundredth of all memory is more than the table's "at most" leaves open.
constexpr std::int64_t kNumUnits = 80;
constexpr std::int64_t kUnitWidth = 128;
constexpr std::int64_t kUnitBytes = kUnitWidth * kUnitWidth * 4;
constexpr std::int64_t kAllBytes = kNumUnits * kUnitBytes;
constexpr std::int64_t kRowBytes = kUnitWidth * 4;  // what lies between two units

struct EqualUnits : torch::nn::Module {
  EqualUnits() {
    for (int i = 0; i < kNumUnits; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kUnitWidth, kUnitWidth).bias(false)));
    }
    register_module("layers", layers);
    fill_by_formula(*this);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};

struct Sharding {
  std::string name;
  FsdpOptions options;
  std::int64_t num_parts;  ///< of a parameter, a gradient and the optimizer's state
  std::int64_t gathered;   ///< bytes at most, beside the parts
  int num_ranks = 2;
};

std::ostream& operator<<(std::ostream& out, const Sharding& sharding) { return out << sharding.name; }

/// The guide's table "On a device".
std::int64_t most_bytes(const Sharding& sharding) {
  const std::int64_t share = kAllBytes / sharding.num_parts;
  const std::int64_t gradients = share + 3 * kUnitBytes;
  const std::int64_t optimizer = 2 * share;
  // Most is needed when backward ends: autograd's gradient of a weight is left then, and some rows.
  const std::int64_t activations = kUnitBytes + 6 * kRowBytes;
  return share + sharding.gathered + gradients + optimizer + activations;
}

std::vector<Sharding> shardings() {
  const auto by = [](ShardingStrategy strategy) { return FsdpOptions().strategy(strategy); };
  return {
      {"Full", by(ShardingStrategy::kFullShard), 2, 2 * kUnitBytes},
      {"FullOn4", by(ShardingStrategy::kFullShard), 4, 2 * kUnitBytes, 4},
      {"GradOp", by(ShardingStrategy::kShardGradOp), 2, kAllBytes},
      {"Zero1", by(ShardingStrategy::kZero1), 2, kAllBytes},
      {"None", by(ShardingStrategy::kNoShard), 1, 0},
      {"Hybrid", by(ShardingStrategy::kHybridShard), 2, 2 * kUnitBytes, 4},
  };
}

struct Trainee {
  std::shared_ptr<EqualUnits> model;
  ShardedModel sharded;
};

Trainee shard(const World& world, const at::Device& device, const Sharding& sharding) {
  const auto options = FsdpOptions(sharding.options).device(device).auto_wrap(wrap_by_size(1000)).min_num_params(0);
  const auto model = std::make_shared<EqualUnits>();
  if (sharding.options.strategy() != ShardingStrategy::kHybridShard) return {model, fully_shard(model, world, options)};
  const DeviceMesh mesh(world, {{"replica", 2}, {"shard", 2}});
  return {model, fully_shard(model, mesh["shard"], mesh["replica"], options)};
}

/// Trains for two steps: the second has all that there is. The host waits for nothing.
void train(const Trainee& trainee, const at::Device& device) {
  optim::AdamW optimizer(trainee.sharded.parameters(), optim::AdamWOptions(0.01));
  const Tensor input = torch::ones({1, kUnitWidth}, device);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    trainee.model->forward(input).square().mean().backward();
    optimizer.step();
  }
  sim::synchronise();
}

/// The most that the device of rank 0 had to hold.
std::int64_t measured_peak(const Sharding& sharding) {
  std::size_t peak = 0;
  on_devices(sharding.num_ranks, [&](const World& world, const at::Device& device) {
    sim::reset_peak_bytes(device.index());
    train(shard(world, device, sharding), device);
    if (world.rank() == 0) peak = sim::peak_bytes(device.index());
  });
  return static_cast<std::int64_t>(peak);
}

void expect_peaks_of_the_table(const Sharding& sharding, std::uint64_t num_delays) {
  const std::int64_t most = most_bytes(sharding);
  for (std::uint64_t seed = 1; seed <= num_delays; ++seed) {
    DeviceTest::delay(seed);
    const std::int64_t peak = measured_peak(sharding);
    ASSERT_LE(peak, most) << "delays " << seed;
    ASSERT_GT(static_cast<double>(peak), 0.99 * static_cast<double>(most)) << "delays " << seed;
  }
}

class PeaksOfDevices : public DeviceTest, public ::testing::WithParamInterface<Sharding> {};
class PeaksOfDevicesSlow : public PeaksOfDevices {};

TEST_P(PeaksOfDevices, AreThoseOfTheGuide) { expect_peaks_of_the_table(GetParam(), 2); }
TEST_P(PeaksOfDevicesSlow, AreThoseOfTheGuide) { expect_peaks_of_the_table(GetParam(), 200); }

const auto name_of_sharding = [](const auto& one) { return one.param.name; };
INSTANTIATE_TEST_SUITE_P(Strategies, PeaksOfDevices, ::testing::ValuesIn(shardings()), name_of_sharding);
INSTANTIATE_TEST_SUITE_P(Strategies, PeaksOfDevicesSlow, ::testing::ValuesIn(shardings()), name_of_sharding);

TEST_F(MemoryOfDevices, OfTheTableIsEnough) {
  delay(3);
  for (const Sharding& sharding : shardings()) {
    sim::settings().bytes_of_device = static_cast<std::size_t>(most_bytes(sharding));
    on_devices(sharding.num_ranks,
               [&](const World& world, const at::Device& device) { train(shard(world, device, sharding), device); });
  }
}

/// Says what there is of each kind.
TEST_F(MemoryOfDevices, IsRefusedWithOneHundredthLess) {
  for (const Sharding& sharding : shardings()) {
    sim::settings().bytes_of_device = static_cast<std::size_t>(most_bytes(sharding) * 99 / 100);
    std::vector<std::string> messages(static_cast<std::size_t>(sharding.num_ranks));
    on_devices(sharding.num_ranks, [&](const World& world, const at::Device& device) {
      const Trainee trainee = shard(world, device, sharding);
      const FsdpMemory counted(trainee.sharded);
      messages[static_cast<std::size_t>(world.rank())] = message_of<StorageError>([&] { train(trainee, device); });
    });
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      const std::string place = std::to_string(rank);
      expect_parts(messages[rank], {"there is no memory for 0.1 MiB more on rank " + place, " MiB of parameters, ",
                                    " MiB of gathered, ", " MiB of gradients, ", " MiB of optimizer, ",
                                    " MiB of activations, ", "use more ranks", "(sim:" + place + ")"});
    }
  }
}

/// What is counted is what the device has given, as soon as the host has asked for it.
TEST_F(MemoryOfDevices, IsCounted) {
  delay(5);
  on_devices(2, [](const World& world, const at::Device& device) {
    const auto [model, sharded] = shard(world, device, shardings().front());
    const FsdpMemory memory(sharded);
    const auto require_all_counted = [&](const std::string& when) {
      const auto in_use = static_cast<std::int64_t>(sim::bytes_in_use(device.index()));
      require_equal(memory.live().all(), in_use, when);
    };
    require_all_counted("shards");
    sim::reset_peak_bytes(device.index());
    optim::AdamW optimizer(sharded.parameters(), optim::AdamWOptions(0.01));
    const Tensor input = torch::ones({1, kUnitWidth}, device);
    require_all_counted("the input");
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      Tensor output = model->forward(input);
      require_all_counted("after forward");
      output.square().mean().backward();
      output.reset();
      require_all_counted("after backward");
      optimizer.step();
      require_all_counted("after a step");
    }
    const std::int64_t share = kAllBytes / 2;
    require_equal(memory.live().of(MemoryKind::kParameters), share, "parameters");
    require_equal(memory.live().of(MemoryKind::kGradients), share, "gradients");
    require_equal(memory.live().of(MemoryKind::kOptimizer), 2 * share, "optimizer");
    require_equal(memory.live().of(MemoryKind::kGathered), 0, "gathered");
    require_equal(memory.live().of(MemoryKind::kActivations), kRowBytes, "the input");
    // A scalar has 4 bytes, and the device's allocator gives it 512.
    const std::int64_t scalars = static_cast<std::int64_t>(sim::peak_bytes(device.index())) - memory.peak_of_all();
    require_equal(scalars % 508, 0, "all else is counted to the byte");
    require(scalars >= 0 && scalars <= 2 * 508, "the peak");
    require(memory.peaks().of(MemoryKind::kGathered) <= 2 * kUnitBytes, "gathered at most");
    require(memory.peaks().of(MemoryKind::kGradients) <= share + 3 * kUnitBytes, "gradients at most");
  });
}

TEST_F(MemoryOfDevices, IsNotCountedBesideAProfiler) {
  std::ostringstream trace;
  {
    const torch::autograd::profiler::RecordProfile profile(trace);
    expect_parts(message_of<ConfigError>([] { const intercept::ThreadMemory counted(sim::device()); }),
                 {"the memory of devices cannot be counted: a profiler records on this thread"});
    const intercept::ThreadMemory of_the_host;
  }
  const intercept::ThreadMemory counted(sim::device());
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
  EXPECT_THROW(torch::autograd::profiler::RecordProfile{trace}, c10::Error);
}

/// Threads whose memory is not counted may free what was counted; the count finds out when the memory is used again.
TEST_F(MemoryOfDevices, ThatOthersFreeCountsUntilItIsUsedAgain) {
  const auto report = [](void* block, std::int64_t num_bytes) {
    c10::reportMemoryUsageToProfiler(block, num_bytes, 0, 0, sim::device());
  };
  int place = 0;
  const intercept::ThreadMemory counted(sim::device());
  report(&place, 1000);
  std::thread([&] { report(&place, -1000); }).join();
  EXPECT_EQ(counted.live().all(), 1000);
  report(&place, 400);
  EXPECT_EQ(counted.live().all(), 400);
  report(&place, -400);
  EXPECT_EQ(counted.live().all(), 0);
}

TEST_F(MemoryOfDevices, CountsAsLongAsTheCounterLives) {
  std::optional<intercept::ThreadMemory> counted(sim::device());
  Tensor first = torch::ones({128}, sim::device());
  const Tensor on_host = torch::ones({128});
  EXPECT_EQ(counted->live().of(MemoryKind::kActivations), 1024);
  counted.reset();
  const intercept::ThreadMemory another(sim::device());
  first.reset();  // of the one before
  EXPECT_EQ(another.live().all(), 0);
  {
    const intercept::CountedElsewhere elsewhere;
    first = torch::ones({128}, sim::device());
  }
  EXPECT_EQ(another.live().all(), 0);
}

}  // namespace
}  // namespace tessera::testing
