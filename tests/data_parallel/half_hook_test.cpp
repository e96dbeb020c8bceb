#include "data_parallel/hook_case.h"

namespace tessera {
namespace {

using testing::bucket_of;

TEST(HalfHook, HandsHalfTheBytesToTheCommunicator) {
  run_threads(2, [](const World& world) {
    for (const auto& hook : {fp16_hook(), bf16_hook()}) {
      const auto exact = all_reduce_hook();
      testing::reduce(*hook, bucket_of(0, {at::ones({12345})}), world.comm());
      testing::reduce(*exact, bucket_of(0, {at::ones({12345})}), world.comm());
      EXPECT_EQ(hook->num_bytes() * 2, exact->num_bytes());
      EXPECT_EQ(exact->num_bytes(), 4U * 12345U);
    }
  });
}

TEST(HalfHook, Fp16HoldsLargeGradientsWithinItsRange) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const at::Tensor gradient = at::tensor({60000.0F, 65504.0F, 1e6F, -1e30F, 3e38F});
      const at::Tensor result = testing::reduce(*fp16_hook(), bucket_of(0, {gradient}), world.comm());
      EXPECT_TRUE(result.isfinite().all().item<bool>()) << result;
      EXPECT_LE(testing::largest_error(result, gradient.clamp(-65504, 65504)), 65504 / 200.0) << result;
    });
  }
}

TEST(HalfHook, Bf16KeepsTheRangeOfFloat) {
  run_threads(2, [](const World& world) {
    const at::Tensor gradient = at::tensor({1e38F, -1e-38F});
    const at::Tensor result = testing::reduce(*bf16_hook(), bucket_of(0, {gradient}), world.comm());
    EXPECT_TRUE(at::allclose(result, gradient, 1e-2, 0)) << result;
  });
}

TEST(HalfHook, DividesBeforeItSums) {
  run_threads(4, [](const World& world) {
    const at::Tensor result = testing::reduce(*fp16_hook(), bucket_of(0, {at::full({9}, 50000.0F)}), world.comm());
    EXPECT_LE(testing::largest_error(result, at::full({9}, 50000.0F)), 50) << result;
  });
}

TEST(HalfHook, ConvertsBucketsOfManyPieces) {
  run_threads(2, [](const World& world) {
    for (const std::int64_t length : {300001, (1 << 17) + 1}) {  // the last piece may be one number
      const auto gradients_of = [length](int rank) {
        return std::vector<at::Tensor>{testing::sample_gradient({length}, rank, 0)};
      };
      const at::Tensor result = testing::reduce(*fp16_hook(), bucket_of(0, gradients_of(world.rank())), world.comm());
      EXPECT_LE(testing::largest_error(result, testing::exact_mean(2, gradients_of)), 4e-3);
    }
  });
}

}  // namespace
}  // namespace tessera
