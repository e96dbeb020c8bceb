// Trainings with ranks as processes: each has its own random numbers, which must be those of one process.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <string>

#include "pipeline/training.h"
#include "support/error_message.h"
#include "support/process_roles.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

/// BACKEND MODEL SCHEDULE: as in one process.
void check_parity(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  const PipelineCase training{.model = arguments.at(1), .schedule = arguments.at(2), .num_steps = 3};
  const Values alone = train_alone(training);
  const auto [difference, name] = largest_difference(training, train_in_stages(training, world), alone);
  require(difference <= tolerance_of(training), training.model + ", " + training.schedule + ": " + name +
                                                    " differs by " + std::to_string(difference * 1e6) + "e-6");
}

/// BACKEND MODEL SCHEDULE SHARDING DP TP, and the other ranks as stages: as in one process.
void check_layout(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  PipelineCase training{.model = arguments.at(1), .schedule = arguments.at(2), .num_steps = 3};
  training.sharding = arguments.at(3);
  training.dp = std::stoi(arguments.at(4));
  training.tp = std::stoi(arguments.at(5));
  const Values alone = train_alone(training);
  const auto [difference, name] = largest_difference(training, train_in_layout(training, world), alone);
  require(difference <= tolerance_of(training),
          training.text() + ": " + name + " differs by " + std::to_string(difference * 1e6) + "e-6");
}

TEST(PipelineLayoutProcesses, TrainAsOneProcess) {
  expect_success(job_of(4, "layout", {"shm", "gpt2", "1f1b", "full_shard", "2", "1"}));
  expect_success(job_of(4, "layout", {"shm", "unet", "zb-v", "ddp", "2", "1"}));
  expect_success(job_of(4, "layout", {"gloo", "unet", "zb-h1", "shard_grad_op", "2", "1"}));
  expect_success(job_of(4, "layout", {"shm", "gpt2", "interleaved", "ddp", "1", "2"}));
  expect_success(job_of(8, "layout", {"shm", "unet", "1f1b", "full_shard", "2", "2"}));
}

/// WORDS: each rank with a seed of its own.
void check_seeds(const Arguments& arguments) {
  const World world = init(WorldOptions().backend("shm"));
  const auto model = make_parity_model("gpt2 with dropout", torch::kDouble);
  const Pipeline pipe = pipeline(model, world);
  torch::manual_seed(static_cast<std::uint64_t>(world.rank()));
  const std::string words = message_of<ConfigError>([&] {
    pipe.step(model->input(0, 0), 1, [&](const at::Tensor& micro) { return model->loss(model->forward(micro), 0, 0); });
  });
  require(words.find(arguments.at(0)) != std::string::npos, "found: " + words);
}

TEST(PipelineSeeds, ThatDifferAreRefused) {
  expect_success(job_of(2, "seeds", {"of a pipeline differ in the state of the random numbers"}));
}

class PipelineProcesses : public ::testing::TestWithParam<std::string> {};

TEST_P(PipelineProcesses, TrainAsOneProcess) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const std::string schedule : {"1f1b", "interleaved", "zb-v"}) {
      expect_success(job_of(num_ranks, "parity", {"shm", GetParam(), schedule}));
    }
  }
  expect_success(job_of(2, "parity", {"gloo", GetParam(), "zb-h1"}));
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineProcesses,
                         ::testing::Values("gpt2 with dropout", "transformer with dropout", "bert with dropout",
                                           "vit with dropout"),
                         [](const auto& test) { return test.param.substr(0, test.param.find(' ')); });

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv,
                                             {{"parity", tessera::testing::check_parity},
                                              {"layout", tessera::testing::check_layout},
                                              {"seeds", tessera::testing::check_seeds}});
}
