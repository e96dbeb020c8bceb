// Recomputation of functions whose tensors act.
#include <gtest/gtest.h>

#include "recompute/blocks.h"
#include "support/box_kind.h"

namespace tessera {
namespace {

using testing::BoxKind;
using testing::call;
using testing::expect_same_gradients;
using testing::leaf;

const BoxKind& kind() {
  static const BoxKind box;
  return box;
}

TEST(RecomputedActing, InputsAndParametersGetTheirGradients) {
  const at::Tensor input = leaf({3, 4});
  const at::Tensor weight = leaf({4, 4}, 1);
  intercept::mark_acting(weight, kind().data());
  expect_same_gradients({input, weight}, [&](bool recomputed) {
    const auto layer = [weight](const at::Tensor& x) {
      return at::dropout(torch::matmul(x, weight).tanh(), 0.5, /*train=*/true) * x;
    };
    at::Tensor x = kind().box(input * 2);
    for (int i = 0; i < 3; ++i) x = call(recomputed, layer, x);
    return x.square().mean();
  });
}

}  // namespace
}  // namespace tessera
