// What gradient hooks remember goes on with a run: bit for bit on as many ranks, anew on others, and that is said.
#include <tessera/data_parallel/gradient_hooks.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "support/error_message.h"
#include "support/require.h"
#include "train/state/memory_step.h"
#include "train/state/trainee.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 9;
constexpr const char* kOptimizer = "fused adamw";

/// One for each rank of a run that did not stop.
std::vector<Weights> straight_weights(const std::string& variant, int num_ranks) {
  std::vector<Weights> weights(static_cast<std::size_t>(num_ranks));
  run_threads(num_ranks, [&](const World& world) {
    TraineeRun run(world, variant, kOptimizer);
    run.train(kSteps);
    weights[static_cast<std::size_t>(world.rank())] = run.weights();
  });
  return weights;
}

void train_and_save(const std::string& variant, int num_ranks, int stop_at, MemoryStep& step) {
  run_threads(num_ranks,
              [&](const World& world) { testing::train_and_save(world, variant, kOptimizer, stop_at, step); });
}

bool same_bits(const Weights& found, const Weights& expected) {
  return std::all_of(expected.begin(), expected.end(),
                     [&](const auto& entry) { return at::equal(found.at(entry.first), entry.second); });
}

/// Names of the tensors that hooks remember.
std::vector<std::string> remembered(const StateSource& source) {
  std::vector<std::string> names;
  for (const ManifestTensor& tensor : source.manifest.tensors) {
    if (tensor.name.starts_with("ddp/hook/")) names.push_back(tensor.name);
  }
  return names;
}

class HookMemory : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(HookMemory, GoesOnWithTheSameBitsWhereverTheRunStopped) {
  const auto& [variant, num_ranks] = GetParam();
  const std::vector<Weights> expected = straight_weights(variant, num_ranks);
  for (const int stop_at : {0, 1, 2, 3, 6}) {
    MemoryStep step(stop_at);
    train_and_save(variant, num_ranks, stop_at, step);
    const StateSource source = step.source();
    MemoryStep again(stop_at);
    run_threads(num_ranks, [&](const World& world) {
      TraineeRun run(world, variant, kOptimizer);
      const RestoreReport report = run.state().restore(source);
      require(report.notes.empty(), report.notes.empty() ? "" : report.notes.front());
      again.add(run.state().capture());
      run.train(kSteps - stop_at);
      require(same_bits(run.weights(), expected[static_cast<std::size_t>(world.rank())]),
              "stopped at " + std::to_string(stop_at));
    });
    // What was restored and not used yet is there to be saved again.
    const StateSource second = again.source();
    ASSERT_EQ(remembered(second), remembered(source));
    for (const std::string& name : remembered(source)) {
      EXPECT_TRUE(at::equal(again.tensor("training", name), step.tensor("training", name))) << name;
    }
  }
}

TEST_P(HookMemory, IsMissedWhereItIsNotGivenBack) {
  const auto& [variant, num_ranks] = GetParam();
  const std::vector<Weights> expected = straight_weights(variant, num_ranks);
  MemoryStep step(6);
  train_and_save(variant, num_ranks, 6, step);
  ASSERT_FALSE(remembered(step.source()).empty());
  for (const std::string& name : remembered(step.source())) step.drop("training", name);
  for (const char* name : {"name", "num_ranks", "ranks_of_model"}) {
    step.values().erase(std::string("ddp/hook/") + name);
  }
  const StateSource source = step.source();
  run_threads(num_ranks, [&](const World& world) {
    TraineeRun run(world, variant, kOptimizer);
    const RestoreReport report = run.state().restore(source);
    require_equal(report.notes.size(), 1, "one note");
    expect_parts(report.notes.front(), {run.ddp().hook().name(), "begins without", "has nothing of it"});
    run.train(kSteps - 6);
    require(!same_bits(run.weights(), expected[static_cast<std::size_t>(world.rank())]), "other bits");
  });
}

TEST_P(HookMemory, BeginsAnewOnAnotherNumberOfRanks) {
  const auto& [variant, num_ranks] = GetParam();
  MemoryStep step(6);
  train_and_save(variant, num_ranks, 6, step);
  const StateSource source = step.source();
  run_threads(num_ranks + 1, [&](const World& world) {
    TraineeRun run(world, variant, kOptimizer);
    const auto notes = run.state().restore(source).notes;
    const auto is_it = [](const std::string& note) { return note.find("gradient hook") != std::string::npos; };
    const auto note = std::find_if(notes.begin(), notes.end(), is_it);
    require(note != notes.end(), "it is said");
    expect_parts(*note, {"begins without", "number of ranks"});
    run.train(1);
  });
}

INSTANTIATE_TEST_SUITE_P(Hooks, HookMemory,
                         ::testing::Combine(::testing::Values("ddp int8", "ddp powersgd"), ::testing::Values(1, 2, 3)),
                         [](const auto& one) {
                           return std::get<0>(one.param).substr(4) + "With" + std::to_string(std::get<1>(one.param));
                         });

/// Of one matrix, as a checkpoint brings it.
std::vector<BucketMemory> memory_of(const at::Tensor& parameter, std::map<std::string, at::Tensor> tensors) {
  return {BucketMemory{.parameters = {parameter}, .tensors = std::move(tensors)}};
}

TEST(HookMemoryOptions, ThatDifferAreReportedAndLeaveNothing) {
  const at::Tensor parameter = at::zeros({6, 8});
  const auto int8 = int8_hook(Int8HookOptions().block(16));
  EXPECT_EQ(int8->load_memory(memory_of(parameter, {{"error", at::ones({6, 8})}, {"error_of_sum", at::ones({6, 8})}})),
            "its block was 8 and is 16");
  const auto power_sgd = power_sgd_hook(PowerSgdOptions().rank(2).min_compression(1));
  EXPECT_EQ(
      power_sgd->load_memory(memory_of(parameter, {{"right/0", at::ones({8, 3})}, {"error/0", at::ones({6, 8})}})),
      "the rank of a matrix was 3 and is 2");
  for (const auto& hook : {int8, power_sgd}) {
    std::vector<BucketMemory> buckets = memory_of(parameter, {});
    EXPECT_TRUE(hook->save_memory(buckets));
    EXPECT_TRUE(buckets.front().tensors.empty()) << hook->name();
  }
}

}  // namespace
}  // namespace tessera::testing
