// A training state of 1.9 GiB where each process may have 1 GiB. A process's limit is RLIMIT_DATA: its own memory, as
// the system counts it, resident or not; what lies in shared memory is counted beside it.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fsdp_memory.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/deferred_init.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/process_roles.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;
constexpr std::int64_t kLimit = 1024 * kMib;
constexpr int kNumLayers = 30;
constexpr std::int64_t kWidth = 2048;  // 16 MiB a layer

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kNumLayers; ++i) {
      const auto options = torch::nn::LinearOptions(kWidth, kWidth).bias(false);
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(options)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = x + layer(x).tanh();
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

void limit_memory() {
  const rlimit limit{static_cast<rlim_t>(kLimit), static_cast<rlim_t>(kLimit)};
  require_equal(setrlimit(RLIMIT_DATA, &limit), 0, "no limit could be set");
}

/// A line of a file below /proc/self, in bytes.
std::int64_t own_bytes(const std::string& file, const std::string& key) {
  std::ifstream lines("/proc/self/" + file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  throw std::runtime_error("there is no " + key + " in /proc/self/" + file);
}

/// BACKEND: three steps of AdamW; the loss falls.
void train(const Arguments& arguments) {
  limit_memory();
  const World world = init(WorldOptions().backend(arguments.at(0)).timeout(std::chrono::seconds(120)));
  torch::manual_seed(1);
  const auto net = [] {
    const DeferredInit no_bytes;
    return std::make_shared<Net>();
  }();
  const ShardedModel sharded =
      fully_shard(net, world, FsdpOptions().auto_wrap(wrap_by_type<torch::nn::LinearImpl>()).init_sync(false));
  const std::int64_t state_bytes = 4 * static_cast<std::int64_t>(sharded.statistics().full_bytes);
  require(state_bytes > kLimit, "the training state would fit");
  FsdpMemory memory(sharded);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-5));
  const torch::Tensor input = torch::linspace(-1, 1, 4 * kWidth).view({4, kWidth});
  std::vector<double> losses;
  std::int64_t most_shared_once = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = net->forward(input).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
    most_shared_once = std::max(most_shared_once, own_bytes("smaps_rollup", "Pss"));
  }
  require(losses.back() < losses.front(), "the loss falls");
  std::printf(
      "rank %d: state %lld MiB in all, counted peak %lld MiB, VmData %lld MiB, VmHWM %lld MiB, Pss %lld MiB\n%s",
      world.rank(), static_cast<long long>(state_bytes / kMib), static_cast<long long>(memory.peak_of_all() / kMib),
      static_cast<long long>(own_bytes("status", "VmData") / kMib),
      static_cast<long long>(own_bytes("status", "VmHWM") / kMib), static_cast<long long>(most_shared_once / kMib),
      memory.text().c_str());
  require(memory.peak_of_all() <= kLimit, "what was counted is above the limit");
  // Shared pages are no part of RLIMIT_DATA: as the system counts them, each once.
  require(most_shared_once <= kLimit, "the process's part of the memory is above the limit");
}

launch::LocalJob training(int num_ranks, const std::string& backend) {
  launch::LocalJob job = job_of(num_ranks, "train", {backend});
  job.timeout = std::chrono::seconds(400);
  return job;
}

void expect_training(const std::string& backend) {
  const auto results = launch::run(training(4, backend));
  expect_success(results);
  if (!results.empty()) std::printf("%s\n", results.front().output.c_str());
}

TEST(MemoryLimit, LetsFourRanksTrainOverGloo) { expect_training("gloo"); }
TEST(MemoryLimit, LetsFourRanksTrainInSharedMemory) { expect_training("shm"); }

TEST(MemoryLimit, StopsOneRankThatSaysWhy) {
  const auto results = launch::run(training(1, "gloo"));
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].exit_code, exit_code(StorageError("")));
  EXPECT_THAT(results[0].output, ::testing::HasSubstr("there is no memory for "));
  EXPECT_THAT(results[0].output, ::testing::HasSubstr("MiB of optimizer"));
  EXPECT_THAT(results[0].output, ::testing::HasSubstr("use more ranks"));
  std::printf("%s\n", results[0].output.c_str());
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv, {{"train", tessera::testing::train}});
}
