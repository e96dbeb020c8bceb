// The formula of docs/guides/recompute.md against bytes that were counted.
#include <tessera/intercept/memory_count.h>
#include <tessera/recompute/recompute_sequential.h>

#include "recompute/blocks.h"

namespace tessera {
namespace {

using intercept::MemoryCount;
using testing::Block;
using testing::waves;

/// Three operators, each of which saves its input.
at::Tensor three_operators(const at::Tensor& x) { return x.sin().cos().sin(); }

struct Layers {
  std::int64_t num_layers;
  std::int64_t num_segments;
};

std::ostream& operator<<(std::ostream& out, const Layers& layers) {
  return out << layers.num_layers << " layers in " << layers.num_segments << " segments";
}

class MemoryFormula : public ::testing::TestWithParam<Layers> {};

TEST_P(MemoryFormula, HoldsForOperatorsThatSaveTheirInputs) {
  const auto [num_layers, num_segments] = GetParam();
  const at::Tensor input = waves({1000}).requires_grad_(true);
  const std::int64_t one = 8000;  // bytes of each tensor here
  const std::int64_t length = num_layers / num_segments;

  MemoryCount memory;
  at::Tensor x = input;
  for (std::int64_t i = 0; i < num_segments; ++i) {
    x = recompute(
        [length](at::Tensor y) {
          for (std::int64_t layer = 0; layer < length; ++layer) y = three_operators(y);
          return y;
        },
        x);
  }
  // The segments' inputs, but for the first, which was there before, and the result.
  EXPECT_EQ(memory.live_bytes(), num_segments * one);

  const at::Tensor loss = x.sum();
  x.reset();
  input.mutable_grad() = at::Tensor();
  memory.reset_peak();
  loss.backward();
  // The inputs and what one segment saves: its input is among the former, and its result is not computed again.
  const std::int64_t formula = (num_segments - 1) * one + (3 * length - 1) * one;
  EXPECT_GE(memory.peak_bytes(), formula);
  EXPECT_LE(memory.peak_bytes(), formula + 4 * one) << "gradients on their way";
  EXPECT_LE(memory.live_bytes(), one + 64) << "the input's gradient and the loss";
}

TEST_P(MemoryFormula, HoldsForLayersOfATransformer) {
  const auto [num_layers, num_segments] = GetParam();
  std::vector<std::shared_ptr<Block>> blocks;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    blocks.push_back(std::make_shared<Block>(32, 0.1));
    for (const at::Tensor& parameter : blocks.back()->parameters())
      parameter.mutable_grad() = at::zeros_like(parameter);
  }
  const at::Tensor input = at::ones({4, 64, 32}).requires_grad_(true);
  input.mutable_grad() = at::zeros_like(input);
  const auto forward = [&](std::int64_t begin, std::int64_t count) {
    return [blocks, begin, count](at::Tensor x) {
      for (std::int64_t i = begin; i < begin + count; ++i) x = blocks[static_cast<std::size_t>(i)]->forward(x);
      return x;
    };
  };
  const auto peak_of = [](const auto& make) {
    MemoryCount memory;
    make().sum().backward();
    return memory.peak_bytes();
  };
  const std::int64_t length = num_layers / num_segments;
  const std::int64_t of_one_segment = peak_of([&] { return forward(0, length)(input); });
  const std::int64_t of_all = peak_of([&] { return forward(0, num_layers)(input); });
  const std::int64_t recomputed = peak_of([&] {
    at::Tensor x = input;
    for (std::int64_t i = 0; i < num_segments; ++i) x = recompute(forward(i * length, length), x);
    return x;
  });
  const std::int64_t boundary = 4 * 64 * 32 * 4;
  const std::int64_t random_states = num_segments * 5056;
  const std::int64_t formula = (num_segments - 1) * boundary + of_one_segment + random_states;
  const std::int64_t slack = 2 * boundary;
  EXPECT_GE(recomputed, formula - slack);
  EXPECT_LE(recomputed, formula + slack);
  if (num_segments > 1) {
    EXPECT_LT(recomputed, of_all);
  }
}

INSTANTIATE_TEST_SUITE_P(Stacks, MemoryFormula,
                         ::testing::Values(Layers{4, 1}, Layers{4, 2}, Layers{4, 4}, Layers{12, 2}, Layers{12, 3},
                                           Layers{12, 4}, Layers{12, 12}, Layers{24, 4}, Layers{24, 24}),
                         [](const auto& one) {
                           return std::to_string(one.param.num_layers) + "LayersIn" +
                                  std::to_string(one.param.num_segments);
                         });

/// `depth` levels of halves, each in a checkpoint.
at::Tensor halves(std::int64_t num_layers, const at::Tensor& x) {
  if (num_layers == 1) return three_operators(x);
  const auto half = [num_layers](const at::Tensor& y) { return halves(num_layers / 2, y); };
  return recompute(half, recompute(half, x));
}

TEST(Memory, GrowsWithTheLogarithmWhenCheckpointsNest) {
  const auto peak_of = [](std::int64_t num_layers) {
    const at::Tensor input = waves({1000}).requires_grad_(true);
    const MemoryCount memory;
    halves(num_layers, input).sum().backward();
    return memory.peak_bytes();
  };
  // Each doubling adds one input.
  EXPECT_LE(peak_of(16) - peak_of(8), 2 * 8000);
  EXPECT_LE(peak_of(64) - peak_of(8), 6 * 8000);
}

TEST(Memory, IsFreedLayerByLayerWhenTheGraphIsRetained) {
  const at::Tensor input = waves({1000}).requires_grad_(true);
  input.mutable_grad() = at::zeros_like(input);
  const auto peak_of = [&](bool retain) {
    MemoryCount memory;
    at::Tensor x = input;
    for (int i = 0; i < 10; ++i)
      x = recompute([](const at::Tensor& y) { return three_operators(three_operators(y)); }, x);
    const at::Tensor loss = x.sum();
    x.reset();
    loss.backward({}, retain);
    EXPECT_EQ(memory.live_bytes(), (retain ? 9 * 8000 : 0) + 8);
    return memory.peak_bytes();
  };
  EXPECT_LE(peak_of(true), peak_of(false) + 2 * 8000);
}

TEST(Memory, IsFreedWhenBackwardFailsOrNeverComes) {
  const at::Tensor input = waves({1000}).requires_grad_(true);
  const MemoryCount memory;
  {
    at::Tensor x = input;
    const at::Tensor middle = recompute(three_operators, x);
    middle.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook fails"); });
    const at::Tensor loss = recompute([](const at::Tensor& y) { return three_operators(y); }, middle).sum();
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    EXPECT_LE(memory.live_bytes(), 2 * 8000 + 64) << "what was computed again is gone with the pass";
  }
  EXPECT_EQ(memory.live_bytes(), 0);
  recompute(three_operators, input);
  EXPECT_EQ(memory.live_bytes(), 0);
}

}  // namespace
}  // namespace tessera
