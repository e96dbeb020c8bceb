#include <tessera/core/error.h>
#include <tessera/train/loader.h>
#include <tessera/train/token_dataset.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "device/on_devices.h"
#include "device/scripted_kernels.h"
#include "support/error_message.h"
#include "support/sim_device/sim_device.h"

// Batches that a loader puts into pinned memory.

namespace tessera::testing {
namespace {

using at::Tensor;

class PinnedLoader : public DeviceTest {};

constexpr std::int64_t kNumSamples = 40;
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kWidth = 8;

Sampler forty_samples() { return Sampler(kNumSamples, 0, 1, SamplerOptions().seed(3).global_batch(kBatch)); }
LoaderOptions pinning() { return LoaderOptions().pin_memory(true); }

Tensor rows_of(const SampleBatch& part) {
  const Tensor samples = torch::tensor(part.samples, torch::kFloat);
  return samples.unsqueeze(1) + torch::arange(kWidth) / kWidth;
}

/// A type of the program's.
struct Pictures {
  Tensor pixels;
  std::vector<std::string> names;
  Pictures pin_memory() const { return {pixels.pin_memory(), names}; }
};

using Example = torch::data::Example<>;
using Nested = std::tuple<std::map<std::string, std::vector<Tensor>>, std::optional<Tensor>, std::int64_t, Pictures>;
static_assert(train::can_pin<Tensor>());
static_assert(train::can_pin<Example>());
static_assert(train::can_pin<torch::data::TensorExample>());
static_assert(train::can_pin<std::vector<Example>>());
static_assert(train::can_pin<std::array<Tensor, 2>>());
static_assert(train::can_pin<TokenBatch>());
static_assert(train::can_pin<Nested>());
static_assert(train::can_pin<std::vector<bool>>());

TEST_F(PinnedLoader, GivesTheSameBytesInPinnedMemory) {
  Sampler sampler = forty_samples();
  Loader loader(forty_samples(), rows_of, pinning().num_threads(2));
  int num_batches = 0;
  for (const Tensor& batch : loader) {
    EXPECT_TRUE(batch.is_pinned());
    EXPECT_TRUE(torch::equal(batch, rows_of(*sampler.next())));
    ++num_batches;
  }
  EXPECT_EQ(num_batches, kNumSamples / kBatch);
  Loader plain(forty_samples(), rows_of);
  EXPECT_FALSE(plain.next()->is_pinned());
}

TEST_F(PinnedLoader, FindsTheTensorsOfABatch) {
  const auto make = [](const SampleBatch& part) -> Nested {
    const Tensor rows = rows_of(part);
    return {{{"a", {rows, rows + 1}}, {"b", {}}}, rows + 2, part.first, Pictures{rows + 3, {"x", "y"}}};
  };
  Sampler sampler = forty_samples();
  Loader loader(forty_samples(), make, pinning());
  auto [by_name, maybe, first, pictures] = *loader.next();
  const Tensor rows = rows_of(*sampler.next());
  const std::vector<Tensor> found = {by_name.at("a").at(0), by_name.at("a").at(1), *maybe, pictures.pixels};
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].is_pinned()) << i;
    EXPECT_TRUE(torch::equal(found[i], rows + static_cast<std::int64_t>(i))) << i;
  }
  EXPECT_TRUE(by_name.at("b").empty());
  EXPECT_EQ(first, 0);
  EXPECT_EQ(pictures.names, (std::vector<std::string>{"x", "y"}));
}

TEST_F(PinnedLoader, TakesExamplesOfTorchData) {
  const auto make = [](const SampleBatch& part) -> std::vector<Example> {
    const Tensor rows = rows_of(part);
    return {{rows, rows + 1}, {rows + 2, Tensor()}};
  };
  Loader loader(forty_samples(), make, pinning());
  const auto examples = *loader.next();
  ASSERT_EQ(examples.size(), 2);
  EXPECT_TRUE(examples[0].data.is_pinned());
  EXPECT_TRUE(examples[0].target.is_pinned());
  EXPECT_TRUE(examples[1].data.is_pinned());
  EXPECT_FALSE(examples[1].target.defined());
}

/// With gaps a device would copy it through memory that is not pinned.
TEST_F(PinnedLoader, ClosesTheGapsOfATensor) {
  const auto make = [](const SampleBatch& part) {
    return TokenBatch{rows_of(part).narrow(1, 0, 3), rows_of(part).t()};
  };
  Sampler sampler = forty_samples();
  Loader loader(forty_samples(), make, pinning());
  const TokenBatch batch = *loader.next();
  const Tensor rows = rows_of(*sampler.next());
  EXPECT_TRUE(batch.input.is_contiguous());
  EXPECT_TRUE(batch.input.is_pinned());
  EXPECT_TRUE(torch::equal(batch.input, rows.narrow(1, 0, 3)));
  EXPECT_EQ(batch.target.strides(), rows.t().strides()) << "it has none";
  EXPECT_TRUE(torch::equal(batch.target, rows.t()));
}

TEST_F(PinnedLoader, TakesARankThatHasNoSample) {
  Sampler sampler(5, 1, 2, SamplerOptions().global_batch(4).last_batch("keep"));
  Loader loader(sampler, [](const SampleBatch& part) { return rows_of(part); }, pinning());
  EXPECT_EQ(loader.next()->size(0), 2);
  EXPECT_EQ(loader.next()->size(0), 0);
  EXPECT_FALSE(loader.next());
}

TEST_F(PinnedLoader, RefusesABatchThatItDoesNotKnow) {
  struct Unknown {
    Tensor rows;
  };
  const auto make = [](const SampleBatch& part) { return Unknown{rows_of(part)}; };
  expect_parts(message_of<ConfigError>([&] { Loader(forty_samples(), make, pinning()); }),
               {"pin_memory is true", "Unknown", "`pin_memory() const`"});
  Loader plain(forty_samples(), make);
  EXPECT_TRUE(plain.next()->rows.defined());
}

TEST_F(PinnedLoader, ThrowsInItsPlaceForABatchOnADevice) {
  const auto make = [](const SampleBatch& part) {
    return part.first == kBatch ? rows_of(part).to(sim::device(0)) : rows_of(part);
  };
  Loader loader(forty_samples(), make, pinning());
  EXPECT_TRUE(loader.next()->is_pinned());
  EXPECT_THROW(loader.next(), c10::Error);
}

TEST_F(PinnedLoader, MakesBatchesOnTheDeviceOfItsMaker) {
  at::accelerator::setDeviceIndex(2);
  std::atomic<int> device = -1;
  Loader loader(
      forty_samples(),
      [&](const SampleBatch& part) {
        device = at::accelerator::getDeviceIndex();
        return rows_of(part);
      },
      pinning());
  loader.next();
  EXPECT_EQ(device, 2);
  at::accelerator::setDeviceIndex(0);
}

TEST_F(PinnedLoader, GoesOnWhereItStopped) {
  Loader first(forty_samples(), rows_of, pinning());
  for (int i = 0; i < 3; ++i) first.next();
  const SamplerState state = first.state();
  EXPECT_EQ(state.consumed, 3 * kBatch);
  Loader second(forty_samples(), rows_of);
  second.restore(state);
  Loader third(forty_samples(), rows_of, pinning());
  third.restore(state);
  const Tensor expected = *second.next();
  EXPECT_TRUE(torch::equal(*third.next(), expected));
  EXPECT_TRUE(torch::equal(*first.next(), expected));
  EXPECT_EQ(third.state(), second.state());
}

/// Batches are gone while they travel: what has their memory next must not change what arrives.
TEST_F(PinnedLoader, LetsTheHostGoOn) {
  Loader loader(forty_samples(), rows_of, pinning());
  const Tensor other = at::ones({4}, sim::device());
  Gate gate(other);  // the copies come behind it
  const auto num_waits = sim::counts().num_host_waits;
  std::vector<Tensor> there;
  for (const Tensor& batch : loader) there.push_back(batch.to(sim::device(), /*non_blocking=*/true));
  EXPECT_EQ(sim::counts().num_host_waits, num_waits);
  gate.open();
  Sampler sampler = forty_samples();
  for (const Tensor& one : there) EXPECT_TRUE(torch::equal(one.cpu(), rows_of(*sampler.next())));
}

/// As docs/guides/data.md has it: batches travel on a stream of their own while the device uses the one before.
TEST_F(PinnedLoader, CopiesWhileTheDeviceComputes) {
  const at::Device device = sim::device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream side = guard.getStreamFromGlobalPool(device);
  const c10::Stream main = guard.getStream(device);
  Loader loader(forty_samples(), rows_of, pinning());
  Sampler sampler = forty_samples();
  const Tensor used = at::ones({4}, device);
  for (const Tensor& batch : loader) {
    Gate compute(used);  // of the batch before: not done
    Tensor there;
    c10::Event arrived(device.type());
    {
      const c10::StreamGuard on(side);
      there = batch.to(device, /*non_blocking=*/true);
      arrived.record(side);
    }
    while (!arrived.query()) std::this_thread::yield();
    EXPECT_FALSE(main.query());
    arrived.block(main);
    there.record_stream(main);
    const Tensor twice = there.mul(2);
    compute.open();
    EXPECT_TRUE(torch::equal(twice.cpu(), rows_of(*sampler.next()) * 2));
  }
}

/// The weights after two epochs.
std::vector<Tensor> trained(const at::Device& device, const LoaderOptions& options) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(kWidth, 16), torch::nn::GELU(), torch::nn::Linear(16, 1));
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto make = [](const SampleBatch& part) -> Example { return {rows_of(part), rows_of(part).sum(1, true)}; };
  Loader loader(forty_samples(), make, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (Example& batch : loader) {
      const Tensor output = model->forward(batch.data.to(device, options.pin_memory()));
      optimizer.zero_grad();
      torch::mse_loss(output, batch.target.to(device, options.pin_memory())).backward();
      optimizer.step();
    }
  }
  std::vector<Tensor> weights;
  for (const Tensor& one : model->parameters()) weights.push_back(one.detach().cpu());
  return weights;
}

TEST_F(PinnedLoader, TrainsToTheSameBits) {
  at::set_num_threads(1);
  const auto expected = trained(at::kCPU, LoaderOptions());
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    delay(seed);
    for (const bool pins : {false, true}) {
      const auto found = trained(sim::device(), LoaderOptions().pin_memory(pins));
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << seed << pins;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
