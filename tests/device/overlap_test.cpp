#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "device/on_devices.h"
#include "parity/models.h"
#include "support/require.h"
#include "support/sim_device/sim_device.h"

// How long a step takes beside the ideal one, on devices whose products and transfers take a known time: what is not
// overlapped shows.

namespace tessera::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;

class OverlapOnDevices : public DeviceTest {};

constexpr int kNumLayers = 8;
constexpr std::int64_t kLadderWidth = 32;
constexpr milliseconds kProduct{24};
constexpr milliseconds kTransfer{20};  // less than a product: forward hides a gather, backward a gather and an average
constexpr int kNumTries = 5;

struct Ladder : torch::nn::Module {
  Ladder() {
    for (int i = 0; i < kNumLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kLadderWidth, kLadderWidth).bias(false)));
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

std::chrono::microseconds duration_of(std::string_view op, std::size_t /*num_bytes*/) {
  if (op == "mm") return kProduct;
  const bool is_transfer = op == "ALLREDUCE" || op == "_ALLGATHER_BASE" || op == "_REDUCE_SCATTER_BASE";
  return is_transfer ? kTransfer : milliseconds(0);
}

struct Measured {
  double step_ms = std::numeric_limits<double>::infinity();
  double launch_ms = 0;  // that the host was busy with it
};

/// The quickest of some steps, on rank 0: the machine may be busy with other work.
Measured quickest_step(const World& world, const at::Device& device, const std::function<Tensor(const Tensor&)>& loss) {
  const Tensor input = formula({4, kLadderWidth}, world.rank(), torch::kFloat).to(device);
  for (int i = 0; i < 3; ++i) loss(input).backward();  // buckets and orders are learnt
  Measured best;
  for (int i = 0; i < kNumTries; ++i) {
    sim::synchronise();
    world.comm().barrier();
    if (world.rank() == 0) sim::settings().duration = duration_of;
    world.comm().barrier();
    const auto begin = std::chrono::steady_clock::now();
    loss(input).backward();
    const std::chrono::duration<double, std::milli> launched = std::chrono::steady_clock::now() - begin;
    sim::synchronise();
    const std::chrono::duration<double, std::milli> ended = std::chrono::steady_clock::now() - begin;
    if (ended.count() < best.step_ms) best = {ended.count(), launched.count()};
    world.comm().barrier();
    if (world.rank() == 0) sim::settings().duration = {};
    world.comm().barrier();
  }
  return best;
}

void expect_near_ideal(const Measured& measured, milliseconds ideal) {
  const double ideal_ms = static_cast<double>(ideal.count());
  const std::string text = std::to_string(measured.step_ms) + " ms, ideal " + std::to_string(ideal_ms) +
                           " ms, launched after " + std::to_string(measured.launch_ms) + " ms";
  EXPECT_LE(measured.step_ms, 1.05 * ideal_ms) << text;
  EXPECT_GE(measured.step_ms, ideal_ms) << text;
  EXPECT_LT(measured.launch_ms, 0.5 * measured.step_ms) << text;
  ::testing::Test::RecordProperty("step", text);
}

constexpr int kNumBackwardProducts = 2 * kNumLayers - 1;  // the first layer's input has no gradient

/// Averages of a layer overlap with the products of those before it; that of the last one to be ready is left.
TEST_F(OverlapOnDevices, CopiesWaitForOneAverage) {
  Measured measured;
  on_devices(2, [&](const World& world, const at::Device& device) {
    const auto model = std::make_shared<Ladder>();
    model->to(device);
    const auto options =
        DdpOptions().bucket_bytes(kLadderWidth * kLadderWidth * 4).first_bucket_bytes(kLadderWidth * kLadderWidth * 4);
    const auto copies = distribute(model, world.comm(), options);
    const Measured mine =
        quickest_step(world, device, [&](const Tensor& x) { return model->forward(x).square().mean(); });
    if (world.rank() == 0) measured = mine;
  });
  expect_near_ideal(measured, (kNumLayers + kNumBackwardProducts) * kProduct + kTransfer);
}

/// What is gathered first is left, and the last average: backward begins with units that forward has just used.
TEST_F(OverlapOnDevices, ShardsWaitForOneGatherAndOneAverage) {
  Measured measured;
  on_devices(2, [&](const World& world, const at::Device& device) {
    const auto model = std::make_shared<Ladder>();
    model->to(device);
    const auto sharded = fully_shard(model, world, FsdpOptions().auto_wrap(wrap_by_size(100)).min_num_params(0));
    const Measured mine =
        quickest_step(world, device, [&](const Tensor& x) { return model->forward(x).square().mean(); });
    if (world.rank() == 0) measured = mine;
  });
  expect_near_ideal(measured, kTransfer + (kNumLayers + kNumBackwardProducts) * kProduct + kTransfer);
}

}  // namespace
}  // namespace tessera::testing
