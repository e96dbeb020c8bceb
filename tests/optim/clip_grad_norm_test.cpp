#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/error_message.h"

namespace tessera {
namespace {

at::Tensor with_gradient(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros_like(gradient).set_requires_grad(true);
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

at::Tensor waves(at::IntArrayRef shape) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.1).view(shape);
}

TEST(ClipGradNorm, ScalesDownToTheNorm) {
  const std::vector<at::Tensor> parameters{with_gradient(waves({3, 5000})), with_gradient(waves({7})),
                                           at::zeros({3}).set_requires_grad(true)};
  const double expected = at::cat({waves({3, 5000}).flatten(), waves({7})}).norm().item<double>();
  EXPECT_NEAR(clip_grad_norm(parameters, 2.0), expected, 1e-9 * expected);
  EXPECT_TRUE(at::allclose(parameters[0].grad(), waves({3, 5000}) * (2.0 / expected), 1e-12, 0));
  EXPECT_NEAR(clip_grad_norm(parameters, 1e9), 2.0, 1e-9);
}

TEST(ClipGradNorm, CountsBothPartsOfComplexGradients) {
  const at::Tensor real = waves({6}).to(at::kFloat);
  const at::Tensor parameter = with_gradient(at::complex(real, real * 2));
  const double expected = std::sqrt(5.0) * real.to(at::kDouble).norm().item<double>();
  EXPECT_NEAR(clip_grad_norm({parameter}, expected / 2), expected, 1e-6 * expected);
  EXPECT_TRUE(at::allclose(at::imag(parameter.grad()), real, 1e-6, 0));
}

TEST(ClipGradNorm, RefusesPartsOfParameters) {
  const at::Tensor parameter = at::ones({4}).set_requires_grad(true);
  parameter.mutable_grad() = at::ones({4});
  set_global_slice(parameter, Slice::extent({4}, {0, 4}));
  EXPECT_EQ(clip_grad_norm({parameter}, 10), 2);
  set_global_slice(parameter, Slice::whole({8}).narrow(0, {4, 4}));
  testing::expect_parts(testing::message_of<ConfigError>([&] { clip_grad_norm({parameter}, 1); }),
                        {"needs all of them, and a parameter here is [4:8] of [8]"});
}

TEST(ClipGradNorm, TakesAParameterThatIsListedTwiceOnce) {
  const at::Tensor tied = with_gradient(waves({10}));
  const double norm = waves({10}).norm().item<double>();
  EXPECT_NEAR(clip_grad_norm({tied, tied}, norm / 2), norm, 1e-9);
  EXPECT_TRUE(at::allclose(tied.grad(), waves({10}) / 2, 1e-9, 1e-12));
}

TEST(ClipGradNorm, LeavesSmallGradientsAlone) {
  const std::vector<at::Tensor> parameters{with_gradient(waves({10}))};
  clip_grad_norm(parameters, 100);
  EXPECT_TRUE(at::equal(parameters[0].grad(), waves({10})));
}

TEST(ClipGradNorm, HasTheSameBitsForEveryNumberOfThreads) {
  const auto clipped_with = [](int num_threads) {
    at::set_num_threads(num_threads);
    const at::Tensor parameter = with_gradient(waves({1 << 20}).to(at::kFloat));
    clip_grad_norm({parameter, with_gradient(waves({333, 77}))}, 1.0);
    return parameter.grad();
  };
  const at::Tensor one = clipped_with(1);
  EXPECT_TRUE(at::equal(one, clipped_with(2)));
  EXPECT_TRUE(at::equal(one, clipped_with(4)));
  at::set_num_threads(1);
}

TEST(ClipGradNorm, HasTheSameBitsForParametersInAnyOrderAndInPieces) {
  const at::Tensor whole = waves({100001}).to(at::kFloat) * 1e3;
  const at::Tensor other = waves({333, 77});
  const at::Tensor parameter = with_gradient(whole);
  const double norm = clip_grad_norm({parameter, with_gradient(other)}, 1.0);
  std::vector<at::Tensor> pieces{with_gradient(other)};
  for (const at::Tensor& piece : whole.split(1234)) pieces.push_back(with_gradient(piece));
  EXPECT_EQ(clip_grad_norm(pieces, 1.0), norm);
  std::vector<at::Tensor> clipped;
  for (std::size_t i = 1; i < pieces.size(); ++i) clipped.push_back(pieces[i].grad());
  EXPECT_TRUE(at::equal(at::cat(clipped), parameter.grad()));
}

TEST(ClipGradNorm, TellsAndKeepsWhatIsNotFinite) {
  at::Tensor gradient = waves({10});
  gradient[3] = std::numeric_limits<double>::infinity();
  const std::vector<at::Tensor> parameters{with_gradient(gradient)};
  EXPECT_FALSE(std::isfinite(clip_grad_norm(parameters, 1)));
  EXPECT_TRUE(at::equal(parameters[0].grad(), gradient));
}

TEST(ClipGradNorm, RefusesANormOfZero) {
  testing::expect_parts(testing::message_of<ConfigError>([] { clip_grad_norm({}, 0); }),
                        {"the norm to clip to must be above 0"});
}

}  // namespace
}  // namespace tessera
