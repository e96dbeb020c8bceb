#include <tessera/core/error.h>

#include "data_parallel/hook_case.h"
#include "data_parallel/hooks/quantise.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using data_parallel::QuantisedPart;
using testing::bucket_of;
using testing::sample_gradient;

// The error of the mean of `num_steps` results for gradients that stay the same.
double error_of_mean(const std::shared_ptr<GradientHook>& hook, int num_steps, at::ScalarType dtype,
                     const World& world) {
  const auto gradients_of = [&](int rank) { return std::vector<at::Tensor>{sample_gradient({3001}, rank, 0, dtype)}; };
  at::Tensor sum = at::zeros({3001}, at::kDouble);
  for (int step = 0; step < num_steps; ++step) {
    sum += testing::reduce(*hook, bucket_of(0, gradients_of(world.rank())), world.comm());
  }
  return testing::largest_error(sum / num_steps, testing::exact_mean(world.size(), gradients_of));
}

TEST(Int8Hook, KeepsTheErrorForTheNextStep) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int num_ranks : {1, 2, 3}) {
      run_threads(num_ranks, [&](const World& world) {
        const double once = error_of_mean(int8_hook(), 1, dtype, world);
        const double often = error_of_mean(int8_hook(), 100, dtype, world);
        EXPECT_GT(once, 1e-3);
        EXPECT_LT(often, 4.0 / 127 / 100) << num_ranks;
      });
    }
  }
}

TEST(Int8Hook, ForgetsTheErrorWithoutFeedback) {
  run_threads(2, [](const World& world) {
    const auto hook = [] { return int8_hook(Int8HookOptions().error_feedback(false)); };
    EXPECT_EQ(error_of_mean(hook(), 1, at::kFloat, world), error_of_mean(hook(), 8, at::kFloat, world));
  });
}

TEST(Int8Hook, GivesSmallNumbersTheirOwnScale) {
  run_threads(2, [](const World& world) {
    at::Tensor gradient = at::full({4096}, 1e-6F);
    gradient.narrow(0, 0, 16).fill_(1000);
    const auto options = Int8HookOptions().block(16);
    const at::Tensor result = testing::reduce(*int8_hook(options), bucket_of(0, {gradient}), world.comm());
    EXPECT_TRUE(at::allclose(result, gradient, 1e-2, 0));
  });
}

TEST(Int8Hook, HandsAQuarterOfTheBytesToTheCommunicatorInEachHalf) {
  for (const int num_ranks : {2, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto hook = int8_hook();
      const std::int64_t length = 1 << 20;
      testing::reduce(*hook, bucket_of(0, {at::ones({length})}), world.comm());
      // One byte for each value and a scale for each 256: all of it to begin with, then the piece that this rank sums.
      const std::uint64_t all = length + length / 256 * 4;
      EXPECT_EQ(hook->num_bytes(), all + all / static_cast<std::uint64_t>(num_ranks));
    });
  }
}

TEST(Int8Hook, SendsAlmostFourTimesLessThanAnAllReduceOfFloats) {
  const auto sent_by = [](const std::shared_ptr<GradientHook>& hook) {
    const World world = fake_world(1, 8);
    const auto before = fake_traffic(world).num_bytes;
    testing::reduce(*hook, bucket_of(0, {at::ones({1 << 20})}), world.comm());
    return static_cast<double>(fake_traffic(world).num_bytes - before);
  };
  EXPECT_NEAR(sent_by(all_reduce_hook()) / sent_by(int8_hook()), 3.94, 0.02);
}

TEST(Int8Hook, SendsExactlyWhereBlocksDoNotPay) {
  run_threads(4, [](const World& world) {
    const auto hook = int8_hook();
    const at::Tensor result = testing::reduce(*hook, bucket_of(0, {at::full({9}, 0.1F)}), world.comm());
    EXPECT_EQ(hook->num_bytes(), 36U);
    EXPECT_LE(testing::largest_error(result, at::full({9}, 0.1F)), 1e-7);
  });
}

TEST(Int8Hook, RefusesABlockThatScalesCannotFollow) {
  for (const std::int64_t block : {0, -8, 12}) {
    const auto message = testing::message_of<ConfigError>([&] { int8_hook(Int8HookOptions().block(block)); });
    testing::expect_parts(message, {"multiple of 8", std::to_string(block)});
  }
}

TEST(Quantise, LeavesWhatWasLost) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const QuantisedPart row{3, 8};
    at::Tensor values = at::cat(
        {sample_gradient({8}, 0, 0, dtype), at::zeros({8}, dtype), at::full({8}, 1e-42, at::TensorOptions(dtype))});
    const at::Tensor original = values.clone();
    at::Tensor lost = values.view({3, 8});
    const at::Tensor bytes = at::empty({row.num_bytes()}, at::kChar);
    data_parallel::quantise(lost, row, bytes);
    at::Tensor read = at::empty({24}, dtype);
    data_parallel::dequantise_into(read, row, bytes, dtype);
    EXPECT_TRUE(at::allclose(read + values, original, 1e-6, 0));
    EXPECT_GT(lost[0].abs().max().item<double>(), 0);
    EXPECT_TRUE(at::equal(lost[2], original.view({3, 8})[2])) << "too small for a scale: all of it is lost";
    EXPECT_LE(lost[0].abs().max().item<double>(), 2.0 / 254);
  }
}

TEST(Quantise, MarksABlockThatIsNotFiniteAndLosesNothingOfIt) {
  const QuantisedPart row{2, 8};
  at::Tensor values = at::ones({2, 8});
  values[1][3] = HUGE_VAL;
  const at::Tensor bytes = at::empty({row.num_bytes()}, at::kChar);
  data_parallel::quantise(values, row, bytes);
  at::Tensor read = at::empty({16});
  data_parallel::dequantise_into(read, row, bytes, at::kFloat);
  EXPECT_TRUE(at::allclose(read.narrow(0, 0, 8), at::ones({8})));
  EXPECT_TRUE(read.narrow(0, 8, 8).isnan().all().item<bool>());
  EXPECT_LE(values.abs().max().item<float>(), 1e-6F);
}

}  // namespace
}  // namespace tessera
