#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "device/on_devices.h"
#include "device/same_bits.h"
#include "device/same_values.h"
#include "pipeline/training.h"
#include "support/require.h"

// Three dimensions on devices: messages between stages, sums of cut layers, averages, each on streams of their own.

namespace tessera::testing {
namespace {

class LayoutsOnDevices : public DeviceTest, public ::testing::WithParamInterface<PipelineCase> {};

TEST_P(LayoutsOnDevices, TrainAsOneProcess) {
  PipelineCase training = GetParam();
  training.num_steps = 3;
  const Values expected = train_alone(training);
  training.device_type = tested::kDevice;
  const auto compare = [&](const World& world, const at::Device& /*device*/) {
    const auto [difference, where] = largest_difference(training, train_in_layout(training, world), expected);
    require(difference <= at_least_of_kernels(tolerance_of(training)),
            where + " differs by " + std::to_string(difference));
  };
  const int num_ranks = training.dp * training.tp * 2;
  delay(5);
  on_devices(num_ranks, compare);
  delay(6);
  on_own_streams(num_ranks, compare);
}

INSTANTIATE_TEST_SUITE_P(
    All, LayoutsOnDevices,
    ::testing::Values(PipelineCase{.model = "gpt", .schedule = "1f1b"},
                      PipelineCase{.model = "unet", .schedule = "gpipe"},
                      PipelineCase{.model = "bert", .schedule = "interleaved", .num_chunks = 2},
                      PipelineCase{.model = "gpt", .schedule = "zb-v"},
                      PipelineCase{.model = "gpt", .schedule = "1f1b", .dp = 2},
                      PipelineCase{.model = "gpt", .schedule = "zb-h1", .dp = 2, .sharding = "full_shard"},
                      PipelineCase{.model = "gpt", .schedule = "1f1b", .tp = 2},
                      PipelineCase{.model = "gpt", .schedule = "1f1b", .dp = 2, .tp = 2, .sharding = "full_shard"}),
    [](const auto& one) {
      std::string name;
      for (const char c : one.param.text()) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

class ThreeDimensionsOnDevices : public DeviceTest {};
class ThreeDimensionsOnDevicesSlow : public DeviceTest {};

/// The same bits however late which stream is.
void expect_bits_without_chance(int num_delays) {
  const PipelineCase training{
      .model = "gpt", .num_steps = 3, .dp = 2, .tp = 2, .sharding = "full_shard", .device_type = tested::kDevice};
  expect_same_bits(8, num_delays, [&](const World& world) {
    LayoutValues found = train_in_layout(training, world);
    for (const GradientPart& part : found.parts) found.whole["gradient of " + part.name] = part.values.cpu();
    return found.whole;
  });
}

TEST_F(ThreeDimensionsOnDevices, KeepTheirBits) { expect_bits_without_chance(kFewDelays); }
TEST_F(ThreeDimensionsOnDevicesSlow, KeepTheirBits) { expect_bits_without_chance(kManyDelays); }

}  // namespace
}  // namespace tessera::testing
