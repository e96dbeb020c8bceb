// What is offloaded stays within its limits, or is refused before anything is moved.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/offload/offload.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>

#include "offload/training.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(OffloadBudgets, ThatCannotHoldTheLargestUnitAreRefusedWithTheNumbers) {
  const TemporaryFolder folder;
  OffloadTraining training;
  training.width = 600;  // a unit of 1.4 MiB
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  training.offload = OffloadOptions()
                         .parameters(Tier::kFile)
                         .states(Tier::kFile)
                         .folders({folder.file("a")})
                         .device_parameter_bytes(kMiB)
                         .host_bytes(kMiB);
  int num_steps = 0;
  training.after_step = [&](const World&, const Offload*, int) { ++num_steps; };
  expect_parts(message_of<ConfigError>([&] { train(training); }),
               {"what is offloaded does not fit", "what is whole at a time of the parameters needs up to 2.7",
                "device_parameter_bytes is 1.00 MiB", "smaller units", "host_bytes is 1.00 MiB"});
  EXPECT_EQ(num_steps, 0);
}

TEST(OffloadBudgets, ThatCannotHoldThisRanksPartsAreRefused) {
  OffloadTraining training;
  training.width = 600;
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  training.offload = OffloadOptions().host_bytes(kMiB / 2);
  expect_parts(message_of<ConfigError>([&] { train(training); }),
               {"host memory for this rank's parts of the parameters needs up to", "host_bytes is 512.00 KiB"});
}

TEST(OffloadBudgets, ThatAreFullWhenAllIsGatheredSaySo) {
  const TemporaryFolder folder;
  run_threads(1, [&](const World& world) {
    const Offload offload(
        OffloadOptions().parameters(Tier::kFile).folders({folder.file("a")}).device_parameter_bytes(10 * 1024));
    const torch::nn::Sequential model(torch::nn::Linear(30, 30), torch::nn::Linear(30, 30), torch::nn::Linear(30, 30));
    const ShardedModel sharded =
        fully_shard(model.ptr(), world,
                    FsdpOptions().min_num_params(0).auto_wrap(wrap_by_size(100)).flat_sources(offload.sources()));
    expect_parts(message_of<StorageError>([&] { static_cast<void>(sharded.gather()); }),
                 {"do not fit into memory for parameters that are whole", "(device_parameter_bytes)"});
    EXPECT_EQ(sharded.full_state_dict().size(), 6U) << "one unit after another";
  });
}

TEST(OffloadBudgets, ThatAreFullInTheMiddleSaySo) {
  OffloadTraining training;
  training.num_ranks = 1;
  training.width = 600;
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  training.offload = OffloadOptions().host_bytes(4 * kMiB);  // the parameters fit, their states do not
  expect_parts(message_of<StorageError>([&] { train(training); }),
               {"for the optimizer state of", "do not fit into host memory for what is offloaded", "of 4.00 MiB",
                "parameters 1.", "Raise host_bytes"});
}

/// Trains, or throws an error that names a limit. No limit is exceeded either way.
void train_within(const OffloadTraining& training, const Weights& expected, int& num_trained, int& num_refused) {
  const OffloadOptions& options = *training.offload;
  OffloadTraining watched = training;
  std::mutex mutex;
  watched.after_step = [&](const World&, const Offload* offload, int) {
    const OffloadFigures figures = offload->figures();
    const std::lock_guard lock(mutex);
    EXPECT_LE(figures.peak_host_bytes, static_cast<std::uint64_t>(options.host_bytes()));
    EXPECT_LE(figures.peak_device_bytes, static_cast<std::uint64_t>(options.device_parameter_bytes()));
  };
  try {
    expect_same_bits(train(watched), expected, "within its limits");
    ++num_trained;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.find("_bytes") != std::string::npos) << text;
    ++num_refused;
  }
}

TEST(OffloadBudgets, HoldForRandomConfigurations) {
  const char* const asked = std::getenv("TESSERA_OFFLOAD_CONFIGURATIONS");
  const int num_configurations = asked ? std::atoi(asked) : 24;
  const TemporaryFolder folder;
  OffloadTraining training;
  training.num_steps = 2;
  training.width = 700;
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  int num_trained = 0;
  int num_refused = 0;
  for (int num_ranks = 1; num_ranks <= 2; ++num_ranks) {
    training.num_ranks = num_ranks;
    training.offload.reset();
    const Weights expected = train(training);
    std::mt19937 random(static_cast<unsigned>(num_ranks));
    const auto any = [&](std::int64_t least, std::int64_t most) {
      return least + static_cast<std::int64_t>(random()) % (most - least + 1);
    };
    const auto tier = [&] { return any(0, 1) == 0 ? Tier::kHost : Tier::kFile; };
    for (int i = 0; i < num_configurations / 2; ++i) {
      training.offload = OffloadOptions()
                             .parameters(tier())
                             .gradients(tier())
                             .states(tier())
                             .folders({folder.file("a"), folder.file("b")})
                             .host_bytes(any(kMiB, 120 * kMiB))
                             .device_parameter_bytes(any(kMiB, 12 * kMiB))
                             .device_max_bytes(12 * kMiB)
                             .prefetch_parameters(any(0, 5))
                             .overlap(any(0, 3) != 0);
      train_within(training, expected, num_trained, num_refused);
    }
  }
  EXPECT_GT(num_trained, num_configurations / 4);
  EXPECT_GT(num_refused, 0);
}

TEST(OffloadOptions, SayEverythingThatIsWrong) {
  const auto faults = OffloadOptions()
                          .parameters(Tier::kFile)
                          .host_bytes(0)
                          .device_parameter_bytes(3 * kMiB)
                          .device_max_bytes(2 * kMiB)
                          .prefetch_parameters(-1)
                          .faults();
  ASSERT_EQ(faults.size(), 4U);
  expect_parts(faults[0], {"host_bytes is 0: set it to a number of bytes above 0"});
  expect_parts(faults[1],
               {"device_parameter_bytes is 3.00 MiB, and device_max_bytes, of which it is a part, 2.00 MiB"});
  expect_parts(faults[2], {"prefetch_parameters is -1: set it to 0 or above"});
  expect_parts(faults[3], {"something is to lie in files, and folders is empty", "name a folder"});
  expect_parts(OffloadOptions().folders({""}).faults().at(0), {"folders holds an empty name"});
  expect_parts(message_of<ConfigError>([] { Offload(OffloadOptions().host_max_bytes(1)); }),
               {"what is offloaded cannot be kept so:", "host_max_bytes"});
  EXPECT_TRUE(OffloadOptions().faults().empty());
}

TEST(OffloadOptions, ComeFromTextAsOtherOptionsDo) {
  OffloadOptions options;
  OffloadOptions::fields().set_text(options, "parameters", "file");
  OffloadOptions::fields().set_text(options, "folders", "/a,/b");
  EXPECT_EQ(options.parameters(), Tier::kFile);
  EXPECT_EQ(options.folders().size(), 2U);
}

}  // namespace
}  // namespace tessera::testing
