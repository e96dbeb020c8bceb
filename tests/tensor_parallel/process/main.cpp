// Trainings with ranks as processes: each has its own random numbers, which must be those of one process.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <string>

#include "support/process_roles.h"
#include "support/require.h"
#include "tensor_parallel/training.h"

namespace tessera::testing {
namespace {

/// BACKEND MODEL DTYPE: as in one process.
void check_parity(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  const bool is_double = arguments.at(2) == "double";
  const TensorCase training{
      .model = arguments.at(1), .uses_adamw = is_double, .dtype = is_double ? torch::kDouble : torch::kFloat};
  const Values alone = train_alone(training);
  const auto [difference, name] = largest_difference(train_cut(training, world), alone);
  require(difference <= tolerance_of(training),
          training.model + ": " + name + " differs by " + std::to_string(difference * 1e6) + "e-6");
}

/// BACKEND MODEL: the error of computing in bfloat16 is at most 1.5 times that of one process.
void check_autocast(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  TensorCase training{.model = arguments.at(1), .uses_adamw = false, .dtype = torch::kFloat, .num_steps = 1};
  const Values exact = train_alone(training);
  training.uses_autocast = true;
  const double alone = distance(train_alone(training), exact);
  const double cut = distance(train_cut(training, world), exact);
  if (world.rank() == 0) std::printf("%s: %.5f, one process %.5f\n", training.model.c_str(), cut, alone);
  require(cut <= 1.5 * alone,
          training.model + ": the error is " + std::to_string(cut) + ", that of one process " + std::to_string(alone));
}

class TensorProcesses : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorProcesses, TrainAsOneProcess) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const std::string dtype : {"double", "float"}) {
      expect_success(job_of(num_ranks, "parity", {"shm", GetParam(), dtype}));
    }
  }
  expect_success(job_of(2, "parity", {"gloo", GetParam(), "double"}));
}

INSTANTIATE_TEST_SUITE_P(Models, TensorProcesses,
                         ::testing::Values("gpt2 with dropout", "transformer with dropout", "bert with dropout",
                                           "vit with dropout"),
                         [](const auto& test) { return test.param.substr(0, test.param.find(' ')); });

TEST(TensorAutocast, ErrsHardlyMoreThanOneProcess) {
  for (const int num_ranks : {2, 4}) {
    for (const std::string model : {"gpt2", "transformer", "bert", "vit", "resnet"}) {
      expect_success(job_of(num_ranks, "autocast", {"shm", model}));
    }
  }
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(
      argc, argv, {{"parity", tessera::testing::check_parity}, {"autocast", tessera::testing::check_autocast}});
}
