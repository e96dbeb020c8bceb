#include <tessera/core/error.h>

#include "data_parallel/hook_case.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::bucket_of;
using testing::sample_gradient;

PowerSgdOptions at_once() { return PowerSgdOptions().start_step(0); }

TEST(PowerSgdHook, IsExactUntilItsStartStep) {
  run_threads(2, [](const World& world) {
    const auto hook = power_sgd_hook(PowerSgdOptions().start_step(3));
    for (int step = 0; step < 5; ++step) {
      const auto gradients_of = [&](int rank) { return std::vector{sample_gradient({60, 70}, rank, step)}; };
      const at::Tensor result = testing::reduce(*hook, bucket_of(0, gradients_of(world.rank())), world.comm());
      const double error = testing::largest_error(result, testing::exact_mean(2, gradients_of));
      EXPECT_EQ(error < 1e-6, step < 3) << step << ": " << error;
    }
  });
}

TEST(PowerSgdHook, ReproducesAMeanOfLowRank) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto gradients_of = [](int rank) {
        return std::vector{at::outer(sample_gradient({50}, rank, 0, at::kDouble), at::arange(90, at::kDouble)) +
                               at::outer(at::arange(50, at::kDouble), sample_gradient({90}, 0, 1, at::kDouble)),
                           sample_gradient({11}, rank, 2, at::kDouble)};
      };
      const auto hook = power_sgd_hook(at_once());
      const at::Tensor result = testing::reduce(*hook, bucket_of(3, gradients_of(world.rank())), world.comm());
      EXPECT_LE(testing::largest_error(result, testing::exact_mean(num_ranks, gradients_of)), 1e-9);
    });
  }
}

TEST(PowerSgdHook, SendsVectorsAndSmallMatricesExactly) {
  run_threads(2, [](const World& world) {
    const auto gradients_of = [](int rank) {
      return std::vector{sample_gradient({400}, rank, 0), sample_gradient({60, 70}, rank, 0),
                         sample_gradient({9, 9}, rank, 0)};
    };
    const auto hook = power_sgd_hook(at_once());
    const at::Tensor result = testing::reduce(*hook, bucket_of(0, gradients_of(world.rank())), world.comm());
    const at::Tensor error = (result - testing::exact_mean(2, gradients_of)).abs();
    EXPECT_LE(error.narrow(0, 0, 400).max().item<double>(), 1e-6);
    EXPECT_GT(error.narrow(0, 400, 4200).max().item<double>(), 1e-2);
    EXPECT_LE(error.narrow(0, 4600, 81).max().item<double>(), 1e-6);
    EXPECT_EQ(hook->num_bytes(), 4U * (400U + 81U + (60U + 70U) * 4U));
  });
}

TEST(PowerSgdHook, CompressesWhereItPaysEnoughOnly) {
  const auto bytes_with = [](double min_compression) {
    std::uint64_t bytes = 0;
    run_threads(1, [&](const World& world) {
      const auto hook = power_sgd_hook(at_once().rank(2).min_compression(min_compression));
      testing::reduce(*hook, bucket_of(0, {at::ones({20, 20})}), world.comm());
      bytes = hook->num_bytes();
    });
    return bytes;
  };
  EXPECT_EQ(bytes_with(5), 4U * 80U);
  EXPECT_EQ(bytes_with(5.1), 4U * 400U);
}

double error_of_mean(const PowerSgdOptions& options, int num_steps, const World& world) {
  const auto gradients_of = [](int rank) { return std::vector{sample_gradient({24, 40}, rank, 0)}; };
  const auto hook = power_sgd_hook(options);
  at::Tensor sum = at::zeros({24 * 40}, at::kDouble);
  for (int step = 0; step < num_steps; ++step) {
    sum += testing::reduce(*hook, bucket_of(0, gradients_of(world.rank())), world.comm());
  }
  return testing::largest_error(sum / num_steps, testing::exact_mean(world.size(), gradients_of));
}

TEST(PowerSgdHook, KeepsTheErrorForTheNextStep) {
  for (const int num_ranks : {1, 2, 3}) {
    run_threads(num_ranks, [](const World& world) {
      EXPECT_GT(error_of_mean(at_once(), 1, world), 0.3);
      EXPECT_LT(error_of_mean(at_once(), 400, world), 0.05);
      EXPECT_GT(error_of_mean(at_once().error_feedback(false), 400, world), 0.2);
    });
  }
}

TEST(PowerSgdHook, SurvivesGradientsOfZeros) {
  run_threads(2, [](const World& world) {
    const auto hook = power_sgd_hook(at_once());
    const at::Tensor gradient = at::outer(at::arange(40, at::kFloat), at::arange(50, at::kFloat));
    for (const float scale : {1.0F, 0.0F, 0.0F, 2.0F, 1.0F}) {
      const at::Tensor result = testing::reduce(*hook, bucket_of(0, {gradient * scale}), world.comm());
      EXPECT_TRUE(result.isfinite().all().item<bool>());
    }
    // What was lost while the factors came back has come too.
    const at::Tensor last = testing::reduce(*hook, bucket_of(0, {gradient}), world.comm());
    EXPECT_LE(testing::largest_error(last.view({40, 50}), gradient), 1);
  });
}

TEST(PowerSgdHook, RefusesOptionsWithoutSense) {
  for (const auto& options :
       {PowerSgdOptions().rank(0), PowerSgdOptions().start_step(-1), PowerSgdOptions().min_compression(0.5)}) {
    testing::expect_parts(testing::message_of<ConfigError>([&] { power_sgd_hook(options); }), {"PowerSGD", "found"});
  }
}

}  // namespace
}  // namespace tessera
