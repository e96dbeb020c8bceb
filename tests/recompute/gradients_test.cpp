// Gradients with checkpoints against those without: layers of a transformer with dropout, nested and in every shape of
// inputs and outputs.
#include <torch/autograd.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "recompute/blocks.h"

namespace tessera {
namespace {

using testing::call;
using testing::expect_same_gradients;
using testing::leaf;
using testing::make_blocks;
using testing::parameters_of;
using testing::waves;

TEST(Checkpoint, GivesTheGradientsOfAPlainCallWithDropout) {
  const auto blocks = make_blocks(3);
  const at::Tensor input = leaf({2, 5, 16});
  auto leaves = parameters_of(blocks);
  leaves.push_back(input);
  expect_same_gradients(leaves, [&](bool recomputed) {
    at::Tensor x = input * 2;
    for (const auto& block : blocks) {
      x = call(recomputed, [block](const at::Tensor& y) { return block->forward(y); }, x);
    }
    return x.square().mean();
  });
}

TEST(Checkpoint, NestsThreeDeepWithDropout) {
  const auto blocks = make_blocks(5);
  const at::Tensor input = leaf({2, 5, 16});
  auto leaves = parameters_of(blocks);
  leaves.push_back(input);
  expect_same_gradients(leaves, [&](bool recomputed) {
    const auto at = [blocks](std::size_t i) {
      return [block = blocks[i]](const at::Tensor& x) { return block->forward(x); };
    };
    const auto inner = [=](const at::Tensor& x) { return at(2)(call(recomputed, at(1), x)); };
    const auto outer = [=](const at::Tensor& x) { return call(recomputed, at(3), call(recomputed, inner, at(0)(x))); };
    return at(4)(call(recomputed, outer, input)).square().mean();
  });
}

TEST(Checkpoint, TakesAndGivesSeveralTensors) {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4}, 1);
  const at::Tensor c = leaf({4}, 2);
  expect_same_gradients({a, b, c}, [&](bool recomputed) {
    const auto [sum, rest] = call(
        recomputed,
        [](const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
          return std::make_tuple((x * y + z).sin(), std::vector<at::Tensor>{x.exp() * y, (z * z).tanh()});
        },
        a, b * 3, c);
    return (sum * rest[0] * rest[1]).mean();
  });
}

TEST(Checkpoint, LeavesOutputsOutThatNobodyUses) {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4}, 1);
  const auto both = [](const at::Tensor& x, const at::Tensor& y) {
    return std::make_pair((x.sin() * x).exp(), (y.cos() * y).exp());
  };
  expect_same_gradients({a, b}, [&](bool recomputed) { return call(recomputed, both, a, b).first.sum(); });
  expect_same_gradients({a, b}, [&](bool recomputed) { return call(recomputed, both, a, b).second.sum(); });
}

TEST(Checkpoint, UsesAnOutputTwice) {
  const at::Tensor a = leaf({3, 4});
  expect_same_gradients({a}, [&](bool recomputed) {
    const at::Tensor x = call(recomputed, [](const at::Tensor& y) { return y.sin().exp(); }, a);
    return (x * x + x.cos()).sum();
  });
}

TEST(Checkpoint, TakesTensorsInsideOfOtherTypes) {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4}, 1);
  const auto function = [](const std::vector<at::Tensor>& list, const std::optional<at::Tensor>& maybe,
                           const std::optional<at::Tensor>& nothing, const std::pair<at::Tensor, double>& scaled,
                           const std::array<at::Tensor, 2>& two, std::int64_t power, bool negate) {
    const at::Tensor x = (list[0] * list[1]).sin() * *maybe + scaled.first.exp() * scaled.second + two[0] * two[1];
    if (nothing) throw std::runtime_error("there was nothing");
    return negate ? -x.pow(power) : x;
  };
  expect_same_gradients({a, b}, [&](bool recomputed) {
    return call(recomputed, function, std::vector<at::Tensor>{a, b}, std::optional<at::Tensor>(a * b),
                std::optional<at::Tensor>(), std::make_pair(b, 0.5), std::array<at::Tensor, 2>{a.cos(), b}, 2, true)
        .sum();
  });
}

TEST(Checkpoint, TakesUndefinedTensorsIndicesAndMasks) {
  const at::Tensor table = leaf({6, 4});
  const at::Tensor rows = at::tensor({5, 0, 2, 2});
  const at::Tensor mask = waves({4, 4}) > 0;
  const auto lookup = [](const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& hidden,
                         const at::Tensor& bias) {
    const at::Tensor found = at::embedding(weights, indices).masked_fill(hidden, 0.5).exp();
    return bias.defined() ? found + bias : found * found;
  };
  expect_same_gradients(
      {table}, [&](bool recomputed) { return call(recomputed, lookup, table, rows, mask, at::Tensor()).sum(); });
}

TEST(Checkpoint, GivesCapturedWeightsTheirGradientsWhenNoInputNeedsOne) {
  const auto blocks = make_blocks(1);
  expect_same_gradients(parameters_of(blocks), [&](bool recomputed) {
    return call(
               recomputed, [block = blocks[0]](const at::Tensor& x) { return block->forward(x); }, waves({2, 5, 16}))
        .square()
        .mean();
  });
}

TEST(Checkpoint, GivesWhatACapturedTensorWasComputedFromItsGradient) {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4}, 1);
  expect_same_gradients({a, b}, [&](bool recomputed) {
    const at::Tensor hidden = a.exp();
    return call(recomputed, [hidden](const at::Tensor& x) { return (x.sin() * hidden).tanh(); }, b).sum();
  });
}

TEST(Checkpoint, AddsUpTheGradientsOfSeveralCallsWithTheSameWeights) {
  const auto blocks = make_blocks(1);
  const auto forward = [block = blocks[0]](const at::Tensor& x) { return block->forward(x); };
  expect_same_gradients(parameters_of(blocks), [&](bool recomputed) {
    const at::Tensor once = call(recomputed, forward, waves({2, 5, 16}));
    return (call(recomputed, forward, once) + call(recomputed, forward, waves({2, 5, 16}, 3))).square().mean();
  });
}

TEST(Checkpoint, PassesInputsAndViewsOfThemThrough) {
  const at::Tensor a = leaf({3, 4});
  expect_same_gradients({a}, [&](bool recomputed) {
    const at::Tensor x = a * 2;
    const auto [same, view, detached] =
        call(recomputed, [](const at::Tensor& y) { return std::make_tuple(y, y.t().narrow(0, 1, 2), y.detach()); }, x);
    return (same * same).sum() + view.exp().sum() + detached.sum();
  });
}

TEST(Checkpoint, AllowsChangesInPlaceOfWhatTheFunctionMade) {
  const at::Tensor a = leaf({3, 4});
  expect_same_gradients({a}, [&](bool recomputed) {
    return call(
               recomputed,
               [](const at::Tensor& x) {
                 at::Tensor y = x * 3;
                 y.narrow(1, 0, 2).mul_(x.narrow(1, 1, 2).sin());
                 return y.add_(1).exp_();
               },
               a)
        .sum();
  });
}

TEST(Checkpoint, CallsAFunctionThatChangesWhenCalledAsItWas) {
  const at::Tensor a = leaf({3, 4});
  expect_same_gradients({a}, [&](bool recomputed) {
    return call(
               recomputed, [calls = 0](const at::Tensor& x) mutable { return ++calls == 1 ? x.exp() : x.sin().cos(); },
               a)
        .sum();
  });
}

TEST(Checkpoint, ServesADerivativeOfADerivative) {
  const auto blocks = make_blocks(1, 0.0);
  const at::Tensor input = leaf({2, 5, 16});
  auto leaves = parameters_of(blocks);
  leaves.push_back(input);
  expect_same_gradients(
      leaves,
      [&](bool recomputed) {
        const at::Tensor y =
            call(
                recomputed, [block = blocks[0]](const at::Tensor& x) { return block->forward(x); }, input)
                .square()
                .sum();
        const auto slope = torch::autograd::grad({y}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true);
        return y + slope[0].square().sum();
      },
      1e-9);  // values of this loss are above 1e3
}

TEST(Checkpoint, ServesAFunctionWithABackwardInside) {
  const at::Tensor a = leaf({3, 4});
  expect_same_gradients({a}, [&](bool recomputed) {
    return call(
               recomputed,
               [](const at::Tensor& x) {
                 const at::Tensor z = x.sin().exp();
                 const auto slope = torch::autograd::grad({z.sum()}, {x}, {}, true, /*create_graph=*/true);
                 return (z * slope[0]).tanh();
               },
               a * 2)
        .sum();
  });
}

}  // namespace
}  // namespace tessera
