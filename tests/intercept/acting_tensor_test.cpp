#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/read_only.h>
#include <tessera/intercept/watch.h>

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/box_kind.h"
#include "support/error_message.h"

namespace tessera::intercept {
namespace {

using at::Tensor;
using testing::BoxKind;

const BoxKind& kind() {
  static const BoxKind box;
  return box;
}

Tensor plain(const Tensor& tensor) { return acting_data(tensor) ? plain(inner_of(tensor).detach()) : tensor; }

Tensor sample(at::IntArrayRef sizes, int seed = 1) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::rand(sizes, at::kDouble);
}

void expect_equal(const Tensor& found, const Tensor& expected) {
  ASSERT_TRUE(found.defined() && expected.defined());
  EXPECT_TRUE(at::equal(plain(found), expected)) << plain(found) << expected;
}

TEST(ActingTensor, IsAskedForEveryOperator) {
  const Tensor x = sample({2, 3});
  const Tensor boxed = kind().box(x);
  EXPECT_EQ(boxed.sizes(), x.sizes());
  EXPECT_TRUE(boxed.is_contiguous());
  EXPECT_EQ(boxed.scalar_type(), at::kDouble);
  const int before = kind().num_calls;
  const Tensor y = torch::matmul(boxed, x.t()).softmax(-1);
  EXPECT_EQ(kind().num_calls, before + 2);  // whole, not what they are made of
  expect_equal(y, torch::matmul(x, x.t()).softmax(-1));
  expect_equal(torch::cat({x, boxed}, 0), torch::cat({x, x}, 0));
  expect_equal(boxed.index({torch::tensor({1}), torch::indexing::Slice()}), x.slice(0, 1));
  expect_equal(x.index({kind().box(torch::tensor({1}))}), x.slice(0, 1));
  const auto parts = boxed.chunk(3, 1);
  expect_equal(parts.at(2), x.narrow(1, 2, 1));
}

TEST(ActingTensor, HasNoBytes) {
  const Tensor boxed = kind().box(sample({2}));
  EXPECT_FALSE(boxed.has_storage());
  EXPECT_THROW((void)boxed.data_ptr(), c10::Error);
}

TEST(ActingTensor, OthersPayNothing) {
  const int before = kind().num_calls;
  sample({3}).add_(1).relu().sum();
  EXPECT_EQ(kind().num_calls, before);
}

/// Gradients of an expression with boxed and with plain tensors.
using Expression = std::function<Tensor(const Tensor& x, const Tensor& weight)>;

void expect_same_gradients(const Expression& expression) {
  const Tensor x = sample({4, 3}, 1).requires_grad_();
  const Tensor weight = sample({3, 3}, 2).requires_grad_();
  expression(x, weight).backward();

  const Tensor other_x = sample({4, 3}, 1).requires_grad_();
  const Tensor marked = sample({3, 3}, 2).requires_grad_();
  mark_acting(marked, kind().data());
  expression(kind().box(other_x), marked).backward();
  expect_equal(other_x.grad(), x.grad());
  expect_equal(marked.grad(), weight.grad());
}

TEST(ActingTensor, PassesGradients) {
  expect_same_gradients([](const Tensor& x, const Tensor& w) { return torch::matmul(x, w).tanh().sum(); });
  expect_same_gradients([](const Tensor& x, const Tensor& w) { return (x.matmul(w) + x.matmul(w.t())).pow(2).mean(); });
  expect_same_gradients([](const Tensor& x, const Tensor& w) { return x.clone().add_(w.sum()).mul_(2).sum(); });
  expect_same_gradients([](const Tensor& x, const Tensor& w) {
    const Tensor y = x.matmul(w);
    y.view({12}).narrow(0, 2, 4).mul_(3);  // through a view
    return (y * y).sum();
  });
}

TEST(ActingTensor, HooksSeeAndChangeItsGradient) {
  expect_same_gradients([](const Tensor& x, const Tensor& w) {
    const Tensor y = x.matmul(w);
    y.register_hook([](const Tensor& gradient) { return gradient * 2; });
    const unsigned removed = y.register_hook([](const Tensor& gradient) { return gradient * 100; });
    y.remove_hook(removed);
    return y.sin().sum();
  });
  const Tensor y = kind().box(sample({3}).requires_grad_()) * 2;
  Tensor seen;
  y.register_hook([&](const Tensor& gradient) { seen = gradient; });
  (y * 5).sum().backward();
  EXPECT_TRUE(is_wrapper(seen));
  expect_equal(seen, at::full({3}, 5, at::kDouble));
}

TEST(ActingTensor, KeepsItsGradientWhenAsked) {
  const Tensor y = kind().box(sample({3}).requires_grad_()) * 2;
  EXPECT_FALSE(y.retains_grad());
  y.retain_grad();
  EXPECT_TRUE(y.retains_grad());
  const Tensor loss = (y * 5).sum();
  loss.backward(kind().box(at::ones({}, at::kDouble)), /*retain_graph=*/true);
  expect_equal(y.grad(), at::full({3}, 5, at::kDouble));
  loss.backward();
  expect_equal(y.grad(), at::full({3}, 10, at::kDouble));
}

TEST(ActingTensor, IsAnInputOfGrad) {
  const Tensor x = kind().box(sample({3}).requires_grad_());
  const Tensor y = x * 2;
  const Tensor unused = x * 3;
  const auto gradients =
      torch::autograd::grad({(y * y).sum()}, {y, unused, x}, {}, /*retain_graph=*/true, false, /*allow_unused=*/true);
  expect_equal(gradients.at(0), 2 * plain(y));
  EXPECT_FALSE(gradients.at(1).defined());
  expect_equal(gradients.at(2), 4 * plain(y));
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {unused}), c10::Error);
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0] * 2 + context->get_saved_variables()[0] * 0};
  }
};

TEST(ActingTensor, RequiresAGradientWhenItsInnerTensorDoes) {
  const Tensor x = kind().box(sample({3}));
  EXPECT_FALSE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
  const Tensor weight = sample({3}).requires_grad_();
  x.narrow(0, 0, 2).mul_(weight.narrow(0, 0, 2));  // through a view
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.is_leaf());
  EXPECT_NE(x.grad_fn(), nullptr);
  x.requires_grad_();  // changes nothing, as for any tensor with a history
  x.set_requires_grad(true);
  Doubled::apply(x).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_THROW(x.requires_grad_(false), c10::Error);
  EXPECT_FALSE(x.detach().requires_grad());
  x.detach_();
  EXPECT_FALSE(x.requires_grad());
  EXPECT_TRUE(x.is_leaf());
}

TEST(ActingTensor, MayBeMadeALeaf) {
  const Tensor leaf = kind().box(sample({3})).detach().requires_grad_();
  EXPECT_TRUE(leaf.is_leaf());
  (leaf * 4).sum().backward();
  (leaf * 4).sum().backward();
  EXPECT_TRUE(is_wrapper(leaf.grad()));
  expect_equal(leaf.grad(), at::full({3}, 8, at::kDouble));
  EXPECT_THROW(leaf.mul_(2), c10::Error);
  EXPECT_THROW(leaf.narrow(0, 0, 1).mul_(2), c10::Error);  // a view of it
}

TEST(ActingTensor, PassesCustomFunctions) {
  expect_same_gradients([](const Tensor& x, const Tensor& w) { return Doubled::apply(x.matmul(w)).exp().sum(); });
  expect_same_gradients([](const Tensor& x, const Tensor& w) { return Doubled::apply(w).add_(x.sum()).sum(); });
  expect_same_gradients([](const Tensor& x, const Tensor& w) {
    const Tensor y = Doubled::apply(x);
    y.narrow(0, 1, 2).mul_(w.sum());  // through a view
    return (y * y).sum();
  });
  expect_same_gradients([](const Tensor& x, const Tensor& w) {
    const Tensor y = Doubled::apply(x);
    y.register_hook([](const Tensor& gradient) { return gradient * 3; });
    return (y.matmul(w) + y.sum()).sum();
  });
}

TEST(ActingTensor, IsAnInputOfBackward) {
  const Tensor x = sample({3}).requires_grad_();
  const Tensor y = kind().box(x) * 2;
  torch::autograd::backward({(y * y).sum()}, {}, /*retain_graph=*/false, /*create_graph=*/false, {y});
  expect_equal(y.grad(), 2 * plain(y));
  EXPECT_FALSE(x.grad().defined());
}

TEST(ActingTensor, HasGradientsOfGradients) {
  const auto penalty = [](bool boxed) {
    const Tensor x = sample({3}).requires_grad_();
    const Tensor y = (boxed ? kind().box(x) : x) * 2;
    const Tensor gradient = torch::autograd::grad({y.pow(3).sum()}, {y}, {}, true, /*create_graph=*/true).front();
    (gradient * gradient).sum().backward();
    return x.grad();
  };
  expect_equal(penalty(true), penalty(false));
}

TEST(ActingTensor, BeginsAPassWithAGradientOfEitherForm) {
  const auto gradient_of = [](const Tensor& weights) {
    const Tensor x = sample({3}).requires_grad_();
    (kind().box(x) * 3).backward(weights);
    return x.grad();
  };
  const Tensor weights = sample({3}, 7);
  expect_equal(gradient_of(weights), weights * 3);
  expect_equal(gradient_of(kind().box(weights)), weights * 3);
}

TEST(ActingTensor, EvaluatesInInferenceMode) {
  const Tensor parameter = sample({3}).requires_grad_();
  mark_acting(parameter, kind().data());
  const c10::InferenceMode guard;
  const Tensor y = kind().box(sample({3}, 2)) * parameter;
  y.add_(1).narrow(0, 0, 1).zero_();
  EXPECT_FALSE(y.requires_grad());
  Tensor expected = sample({3}, 2) * sample({3}) + 1;
  expected[0] = 0;
  expect_equal(y, expected);
}

TEST(ActingTensor, MayBeUsedByOtherThreads) {
  const Tensor weight = sample({3}).requires_grad_();
  mark_acting(weight, kind().data());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 50; ++step) (kind().box(sample({3}, step)) * weight).sum().backward();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(MarkedTensor, StaysWhatItIs) {
  const Tensor parameter = sample({2, 2}).requires_grad_();
  const Tensor& handle = parameter;
  const void* const bytes = parameter.data_ptr();
  mark_acting(parameter, kind().data());
  EXPECT_TRUE(acting_data(handle));
  EXPECT_FALSE(is_wrapper(parameter));
  EXPECT_EQ(parameter.data_ptr(), bytes);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(acting_data(parameter.detach()));
  EXPECT_TRUE(acting_data(parameter.data()));
  unmark_acting(parameter);
  EXPECT_FALSE(acting_data(parameter));
  const int before = kind().num_calls;
  (void)(parameter * 2);
  EXPECT_EQ(kind().num_calls, before);
}

TEST(MarkedTensor, IsWrittenToAsAPlainOne) {
  const Tensor parameter = at::ones({2, 2}).requires_grad_();
  mark_acting(parameter, kind().data());
  EXPECT_THROW(parameter.mul_(2), c10::Error);  // a leaf that requires a gradient
  const auto version = parameter._version();
  {
    const torch::NoGradGuard no_grad;
    parameter.mul_(3);
    torch::nn::init::constant_(parameter, 7);
  }
  EXPECT_GT(parameter._version(), version);
  EXPECT_EQ(parameter.const_data_ptr<float>()[3], 7);
}

TEST(MarkedTensor, KeepsItsMarkWithOtherData) {
  const Tensor parameter = sample({2, 2}).requires_grad_();
  mark_acting(parameter, kind().data());
  parameter.set_data(at::ones({2, 2}));
  EXPECT_TRUE(acting_data(parameter));
  EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  const std::string message = testing::message_of<ConfigError>([&] { parameter.set_data(at::ones({4, 2})); });
  EXPECT_NE(message.find("a box of level 1 of [2, 2] is to get data of [4, 2]"), std::string::npos) << message;
}

TEST(MarkedTensor, IsTrainedByAnOptimizer) {
  const auto train = [](bool marked) {
    torch::manual_seed(3);
    torch::nn::Linear layer(3, 2);
    layer->to(at::kDouble);
    if (marked) {
      for (const Tensor& parameter : layer->parameters()) mark_acting(parameter, kind().data());
    }
    torch::optim::AdamW optimizer(layer->parameters());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      layer(sample({4, 3}, step)).pow(2).sum().backward();
      optimizer.step();
    }
    return plain(layer->weight).clone();
  };
  EXPECT_TRUE(at::equal(train(true), train(false)));
}

TEST(ActingKinds, OfTheGreatestLevelAreAskedFirst) {
  static const BoxKind outer(5);
  const Tensor x = sample({3});
  const Tensor inside = kind().box(x);
  const Tensor both = outer.box(inside);
  outer.names.clear();
  kind().names.clear();
  const Tensor y = both + inside;
  EXPECT_EQ(outer.names, std::vector<std::string>{"aten::add"});
  EXPECT_EQ(kind().names, std::vector<std::string>{"aten::add"});
  EXPECT_TRUE(acting_data(y, outer));
  EXPECT_TRUE(acting_data(inner_of(y), kind()));
  expect_equal(y, x + x);
}

TEST(ActingTensor, LeavesAutocastToTheOperatorsBelow) {
  const Tensor x = at::ones({2, 2});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = torch::matmul(kind().box(x), x);
  const auto plain_dtype = torch::matmul(x, x).scalar_type();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), plain_dtype);
  EXPECT_EQ(plain_dtype, at::kBFloat16);
}

class CountingListener : public Listener {
 public:
  void on_use(const Use& use) override { names.emplace_back(use.operator_name()); }
  std::vector<std::string> names;
};

TEST(MarkedTensor, IsSeenByWatches) {
  const Tensor parameter = sample({2, 2}).requires_grad_();
  const auto listener = std::make_shared<CountingListener>();
  const Watch watch({parameter}, listener);
  mark_acting(parameter, kind().data());
  (void)torch::matmul(kind().box(sample({2, 2})), parameter);
  // The operator that the program calls, and the one that computes.
  EXPECT_GE(std::count(listener->names.begin(), listener->names.end(), "aten::matmul"), 2);
}

TEST(ReadOnlyTensor, IsReadAsItsCopy) {
  const Tensor x = sample({2, 3}).requires_grad_();
  const Tensor guarded = make_read_only(x * 2, "it is a copy");
  const Tensor y = guarded.t().matmul(x);
  EXPECT_FALSE(acting_data(y));
  expect_equal(y.detach(), (x * 2).t().matmul(x).detach());
  guarded.narrow(1, 0, 1).sum().backward();
  expect_equal(x.grad(), torch::tensor({{2., 0., 0.}, {2., 0., 0.}}, at::kDouble));
  const Tensor copied = at::zeros({2, 3}, at::kDouble);
  copied.copy_(guarded);
  expect_equal(copied, (x * 2).detach());
}

TEST(ReadOnlyTensor, RefusesWritesToItAndItsViews) {
  const Tensor guarded = make_read_only(at::ones({2, 3}), "write to the parameter");
  EXPECT_EQ(testing::message_of<ConfigError>([&] { guarded.mul_(2); }),
            "aten::mul_ would write to a copy, and that would be lost: write to the parameter");
  EXPECT_THROW(guarded.view({6}).narrow(0, 1, 2).zero_(), ConfigError);
  EXPECT_THROW(guarded.t().copy_(at::ones({3, 2})), ConfigError);
  EXPECT_THROW(guarded.unbind(0).at(1).add_(1), ConfigError);
  EXPECT_NO_THROW(guarded.clone().add_(1));
  EXPECT_NO_THROW(kind().box(guarded).add(1));
  EXPECT_THROW(kind().box(guarded).add_(1), ConfigError);
}

}  // namespace
}  // namespace tessera::intercept
