// When the function runs, and how often.
#include <torch/autograd.h>

#include <functional>
#include <thread>

#include "recompute/blocks.h"

namespace tessera {
namespace {

using testing::leaf;
using testing::waves;

/// Counts how often it begins and how often it ends.
struct Counted {
  std::shared_ptr<int> begun = std::make_shared<int>(0);
  std::shared_ptr<int> ended = std::make_shared<int>(0);

  at::Tensor operator()(const at::Tensor& x) const {
    ++*begun;
    const at::Tensor y = x.sin().exp().cos();
    ++*ended;
    return y;
  }
};

TEST(Checkpoint, RunsTheFunctionAgainOnlyAsFarAsNeeded) {
  const Counted function;
  const at::Tensor y = recompute(function, leaf({3}));
  EXPECT_EQ(*function.begun, 1);
  y.sum().backward();
  EXPECT_EQ(*function.begun, 2);
  EXPECT_EQ(*function.ended, 1) << "the last cosine saves its input before it computes";
}

TEST(Checkpoint, RunsTheFunctionOnceWithoutGradients) {
  const Counted function;
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(function, leaf({3})).requires_grad());
  }
  EXPECT_FALSE(recompute(function, waves({3})).requires_grad());
  {
    const c10::InferenceMode inference;
    recompute(function, at::ones({3}));
  }
  EXPECT_EQ(*function.begun, 3);
}

TEST(Checkpoint, RunsTheFunctionAgainForEachPassOfARetainedGraph) {
  const Counted function;
  const at::Tensor a = leaf({3});
  const at::Tensor plain = std::get<0>(std::make_tuple(torch::autograd::grad({function(a).sum()}, {a})[0]));
  *function.begun = 0;
  const at::Tensor loss = recompute(function, a).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(*function.begun, 4);
  EXPECT_TRUE(at::allclose(a.grad(), 3 * plain, 0, 1e-12));
  EXPECT_THROW(loss.backward(), c10::Error) << "as without a checkpoint, the graph is gone";
}

TEST(Checkpoint, ServesOnePassForEachOutput) {
  const at::Tensor a = leaf({3});
  const auto both = [](const at::Tensor& x) {
    const at::Tensor shared = x.exp().sin();
    return std::make_pair(shared.cos(), shared.tanh());
  };
  const auto gradient = [&](const auto& outputs) {
    a.mutable_grad() = at::Tensor();
    outputs.first.sum().backward({}, /*retain_graph=*/true);
    outputs.second.sum().backward();
    return a.grad();
  };
  const at::Tensor plain = gradient(both(a));
  EXPECT_TRUE(at::allclose(gradient(recompute(both, a)), plain, 0, 1e-12));
}

TEST(Checkpoint, ServesAPassForSomeInputs) {
  const at::Tensor a = leaf({3});
  const at::Tensor b = leaf({3}, 1);
  const auto product = [](const at::Tensor& x, const at::Tensor& y) { return x.sin() * y.exp(); };
  const at::Tensor loss = recompute(product, a, b).sum();
  const auto of_b = torch::autograd::grad({loss}, {b}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(at::allclose(of_b[0], a.sin() * b.exp(), 0, 1e-12));
  EXPECT_FALSE(a.grad().defined());
  loss.backward();
  EXPECT_TRUE(at::allclose(a.grad(), a.cos() * b.exp(), 0, 1e-12));
}

/// Reads what it saved as often as it likes.
struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * (context->get_saved_variables()[0] + context->get_saved_variables()[0])};
  }
};

TEST(Checkpoint, ServesANodeThatAsksTwice) {
  const at::Tensor a = leaf({3});
  for (const bool retain : {true, false}) {
    a.mutable_grad() = at::Tensor();
    const at::Tensor y = recompute([](const at::Tensor& x) { return Twice::apply(x.exp()); }, a);
    y.sum().backward({}, retain);
    EXPECT_TRUE(at::allclose(a.grad(), 2 * (2 * a).exp(), 0, 1e-12));
  }
}

TEST(Checkpoint, IsNotStoppedByAFunctionThatCatchesAll) {
  const at::Tensor a = leaf({3});
  const at::Tensor y = recompute(
      [](const at::Tensor& x) {
        try {
          return x.exp().sin();
        } catch (...) {
          return x.cos().tanh();
        }
      },
      a);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(a.grad(), a.exp().cos() * a.exp(), 0, 1e-12));
}

TEST(Checkpoint, ServesThreadsAtTheSameTime) {
  const auto gradient = [](bool recomputed, int thread) {
    const at::Tensor a = leaf({4, 4}, thread);
    at::Tensor x = a;
    for (int i = 0; i < 20; ++i) {
      x = testing::call(recomputed, [](const at::Tensor& y) { return (y.sin() * y.exp()).tanh(); }, x);
    }
    x.sum().backward();
    return a.grad();
  };
  std::vector<at::Tensor> found(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { found[static_cast<std::size_t>(i)] = gradient(true, i); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(found[static_cast<std::size_t>(i)], gradient(false, i)));
}

TEST(Checkpoint, ServesABackwardOnAnotherThread) {
  const at::Tensor a = leaf({3});
  const at::Tensor loss = recompute([](const at::Tensor& x) { return x.sin().exp(); }, a).sum();
  std::thread([&] { loss.backward(); }).join();
  EXPECT_TRUE(at::allclose(a.grad(), a.cos() * a.sin().exp(), 0, 1e-12));
}

TEST(Checkpoint, LeavesOutsideOfItAsItWas) {
  const at::Tensor a = leaf({3});
  const at::Tensor before = a.sin().sum();
  const at::Tensor y = recompute([](const at::Tensor& x) { return x.exp(); }, a);
  const at::Tensor after = (y.exp() * y).sum();
  (before + after).backward();
  EXPECT_TRUE(at::allclose(a.grad(), a.cos() + a.exp() * (a.exp().exp() * (1 + a.exp())), 0, 1e-9));
}

}  // namespace
}  // namespace tessera
