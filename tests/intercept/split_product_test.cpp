#include <tessera/intercept/split_product.h>

#include <torch/csrc/autograd/function.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::intercept {
namespace {

struct Factors {
  at::Tensor input;
  at::Tensor weight;  // as a layer has it: [outputs, inputs]
  at::Tensor bias;
};

Factors make(std::vector<std::int64_t> sizes, at::ScalarType type, bool input_is_turned) {
  torch::manual_seed(7);
  constexpr std::int64_t kOutputs = 5;
  const std::int64_t num_inputs = sizes.back();
  at::Tensor input = input_is_turned ? torch::randn({num_inputs, sizes[0]}, type).t() : torch::randn(sizes, type);
  return {input.requires_grad_(true), torch::randn({kOutputs, num_inputs}, type).requires_grad_(true),
          torch::randn({kOutputs}, type).requires_grad_(true)};
}

at::Tensor whole_node(const Factors& factors) {
  const at::Tensor weight = factors.weight.t();
  return factors.input.dim() == 2 ? torch::addmm(factors.bias, factors.input, weight)
                                  : factors.input.matmul(weight) + factors.bias;
}

at::Tensor split_nodes(const Factors& factors) {
  const at::Tensor weight = factors.weight.t();
  at::Tensor result;
  {
    const at::NoGradGuard no_grad;
    result = whole_node(factors);
  }
  connect_split_product(result, factors.input, weight, factors.bias, 0);
  return result;
}

class SplitProduct : public ::testing::TestWithParam<std::tuple<std::vector<std::int64_t>, at::ScalarType, bool>> {};

TEST_P(SplitProduct, HasTheGradientsOfOneNode) {
  const auto& [sizes, type, is_turned] = GetParam();
  const Factors expected = make(sizes, type, is_turned);
  const Factors found = make(sizes, type, is_turned);
  const at::Tensor result = whole_node(expected);
  const at::Tensor slope = torch::randn_like(result);
  result.backward(slope);
  split_nodes(found).backward(slope);
  EXPECT_TRUE(at::equal(found.input.grad(), expected.input.grad()));
  EXPECT_TRUE(at::equal(found.weight.grad(), expected.weight.grad()));
  EXPECT_EQ(found.weight.grad().strides(), expected.weight.grad().strides());
  EXPECT_TRUE(at::equal(found.bias.grad(), expected.bias.grad()));
}

TEST_P(SplitProduct, HasGradientsOfGradients) {
  const auto& [sizes, type, is_turned] = GetParam();
  if (type != at::kDouble) return;  // rounding is of no interest here
  const auto second = [](const Factors& factors, const at::Tensor& result) {
    const std::vector<at::Tensor> leaves{factors.input, factors.weight};
    const auto first = torch::autograd::grad({result.pow(3).sum()}, leaves, {}, true, true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].sin().sum()}, leaves);
  };
  const Factors factors = make(sizes, type, is_turned);
  const auto expected = second(factors, whole_node(factors));
  const auto found = second(factors, split_nodes(factors));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-12, 1e-12));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SplitProduct,
    ::testing::Combine(::testing::Values(std::vector<std::int64_t>{3, 4}, std::vector<std::int64_t>{1, 4},
                                         std::vector<std::int64_t>{3, 1}, std::vector<std::int64_t>{2, 3, 4},
                                         std::vector<std::int64_t>{0, 3, 4}, std::vector<std::int64_t>{2, 3, 0}),
                       ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16), ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(TurnedInputs, SplitProduct,
                         ::testing::Combine(::testing::Values(std::vector<std::int64_t>{3, 4}),
                                            ::testing::Values(at::kDouble, at::kFloat), ::testing::Values(true)));

TEST(SplitProducts, ComputeOnlyWhatIsAskedFor) {
  const Factors factors = make({3, 4}, at::kDouble, false);
  const at::Tensor sum = split_nodes(factors).sum();
  const auto of_input = torch::autograd::grad({sum}, {factors.input}, {}, true);
  EXPECT_FALSE(factors.weight.grad().defined());
  const auto of_weight = torch::autograd::grad({sum}, {factors.weight});
  EXPECT_TRUE(at::allclose(of_input[0], factors.weight.detach().sum(0).expand({3, 4})));
  EXPECT_TRUE(at::allclose(of_weight[0], factors.input.detach().sum(0).expand({5, 4})));
}

TEST(SplitProducts, AreRefusedASecondBackwardPass) {
  const at::Tensor sum = split_nodes(make({3, 4}, at::kDouble, false)).sum();
  sum.backward();
  EXPECT_THROW(sum.backward(), c10::Error);
}

/// Stands in a graph and tells when it ran.
struct RunNote : torch::autograd::Function<RunNote> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t log) {
    context->saved_data["log"] = log;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    reinterpret_cast<std::vector<std::string>*>(context->saved_data["log"].toInt())->push_back("before the product");
    return {gradients[0], {}};
  }
};

TEST(SplitProducts, WaitWithTheWeightAsTheNumberSays) {
  for (const bool weight_first : {false, true}) {
    std::vector<std::string> log;
    Factors factors = make({3, 4}, at::kDouble, false);
    const at::Tensor input = RunNote::apply(factors.input, reinterpret_cast<std::int64_t>(&log));
    const std::uint64_t number = input.grad_fn()->sequence_nr();
    const at::Tensor weight = factors.weight.t();
    at::Tensor result = input.detach().matmul(weight.detach());
    connect_split_product(result, input, weight, {}, weight_first ? number + 1 : number - 1);
    factors.weight.register_hook([&](const at::Tensor&) { log.emplace_back("the weight"); });
    result.sum().backward();
    const std::vector<std::string> expected = weight_first
                                                  ? std::vector<std::string>{"the weight", "before the product"}
                                                  : std::vector<std::string>{"before the product", "the weight"};
    EXPECT_EQ(log, expected);
  }
}

}  // namespace
}  // namespace tessera::intercept
