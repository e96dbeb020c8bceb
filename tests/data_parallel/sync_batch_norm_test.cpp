#include <tessera/core/error.h>
#include <tessera/data_parallel/sync_batch_norm.h>

#include <torch/nn/modules/batchnorm.h>
#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/require.h"

namespace tessera {
namespace {

using testing::require;

using testing::require_equal;

at::Tensor whole_input() { return at::sin(at::arange(6 * 3 * 2 * 2, at::kDouble) * 0.7).view({6, 3, 2, 2}) + 5; }
at::Tensor weights_of_loss() { return at::cos(at::arange(6 * 3 * 2 * 2, at::kDouble)).view({6, 3, 2, 2}); }

bool close_to(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-10, 1e-12); }

/// Ranks hold `rows` of the batch each; some may hold none.
void check_against_whole_batch(const std::vector<std::int64_t>& rows) {
  torch::nn::BatchNorm2d expected(3);
  expected->to(at::kDouble);
  const at::Tensor input = whole_input().set_requires_grad(true);
  const at::Tensor output = expected(input);
  (output * weights_of_loss()).sum().backward();
  run_threads(static_cast<int>(rows.size()), [&](const World& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), world);
    norm->to(at::kDouble);
    std::int64_t begin = 0;
    for (int rank = 0; rank < world.rank(); ++rank) begin += rows[static_cast<std::size_t>(rank)];
    const auto count = rows[static_cast<std::size_t>(world.rank())];
    const at::Tensor mine = whole_input().narrow(0, begin, count).clone().set_requires_grad(true);
    const at::Tensor found = norm(mine);
    require(close_to(found, output.narrow(0, begin, count)), "output");
    (found * weights_of_loss().narrow(0, begin, count)).sum().backward();
    require(close_to(mine.grad(), input.grad().narrow(0, begin, count)), "gradient of the input");
    const at::Tensor of_weight = norm->weight.grad().clone();
    world.comm().all_reduce(of_weight);
    require(close_to(of_weight, expected->weight.grad()), "gradient of the weight");
    require(close_to(norm->running_mean, expected->running_mean), "running mean");
    require(close_to(norm->running_var, expected->running_var), "running variance");
    require_equal(norm->num_batches_tracked.item<int>(), 1, "batches");
    norm->eval();
    expected->eval();
    require(close_to(norm(whole_input()), expected(whole_input())), "evaluation");
  });
}

TEST(SyncBatchNorm, EqualsBatchNormOfTheWholeBatch) { check_against_whole_batch({3, 3}); }

TEST(SyncBatchNorm, TakesUnevenAndEmptyParts) { check_against_whole_batch({1, 0, 5}); }

TEST(SyncBatchNorm, ComputesHalvesInFloat) {
  // More values than bfloat16 can count, around a mean that it cannot square.
  const auto input = (at::sin(at::arange(2 * 3 * 40 * 40, at::kFloat)) + 30).view({2, 3, 40, 40});
  torch::nn::BatchNorm2d expected(3);
  const at::Tensor wanted = expected(input.to(at::kBFloat16).to(at::kFloat));
  run_threads(2, [&](const World& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), world);
    const at::Tensor found = norm(input.to(at::kBFloat16).narrow(0, world.rank(), 1));
    require_equal(found.scalar_type(), at::kBFloat16, "the input's type");
    require(at::allclose(found.to(at::kFloat), wanted.narrow(0, world.rank(), 1), 1e-2, 1e-2), "output");
    require(at::allclose(norm->running_var, expected->running_var, 1e-4, 1e-5), "running variance");
  });
}

TEST(SyncBatchNorm, RefusesASecondDerivative) {
  run_threads(1, [](const World& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), world);
    const at::Tensor input = at::rand({4, 3}).set_requires_grad(true);
    const at::Tensor loss = norm(input).square().sum();
    testing::expect_parts(testing::message_of<ConfigError>([&] { loss.backward({}, true, /*create_graph=*/true); }),
                          {"SyncBatchNorm has no second derivative"});
    norm->zero_grad();  // the scale's gradient, which came before, leads back to the scale: nobody would free them
  });
}

TEST(SyncBatchNorm, RefusesAnInputOfOtherFeatures) {
  run_threads(1, [](const World& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), world);
    testing::expect_parts(testing::message_of<ConfigError>([&] { norm(at::ones({2, 4})); }),
                          {"expected an input of shape [batch, 3, ...], found [2, 4]", "rank 0"});
  });
}

TEST(SyncBatchNorm, RefusesASingleValueOverAllRanks) {
  run_threads(2, [](const World& world) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), world);
    const at::Tensor mine = at::ones({world.rank() == 0 ? 1 : 0, 3});
    testing::expect_parts(testing::message_of<ConfigError>([&] { norm(mine); }),
                          {"needs more than one value a feature over all ranks"});
  });
}

}  // namespace
}  // namespace tessera
