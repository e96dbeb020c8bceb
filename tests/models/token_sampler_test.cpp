#include "generation/token_sampler.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/error_message.h"

namespace tessera::models {
namespace {

/// Logits whose softmax is this.
at::Tensor logits_of(const std::vector<double>& probabilities) {
  return at::log(at::tensor(probabilities, at::kFloat)).view({1, -1});
}

void expect_probabilities(const at::Tensor& found, const std::vector<double>& expected) {
  EXPECT_TRUE(at::allclose(found.view(-1), at::tensor(expected, at::kFloat), 1e-5, 1e-6)) << found;
}

TEST(TokenProbabilities, AreTheSoftmax) {
  expect_probabilities(token_probabilities(logits_of({0.1, 0.6, 0.3}), {}), {0.1, 0.6, 0.3});
}

TEST(TokenProbabilities, AreSharpenedByALowTemperature) {
  const double sum = 0.01 + 0.36 + 0.09;
  expect_probabilities(token_probabilities(logits_of({0.1, 0.6, 0.3}), GenerateOptions().temperature(0.5)),
                       {0.01 / sum, 0.36 / sum, 0.09 / sum});
}

TEST(TokenProbabilities, KeepTheLikeliestFew) {
  expect_probabilities(token_probabilities(logits_of({0.1, 0.5, 0.3, 0.1}), GenerateOptions().top_k(2)),
                       {0, 0.625, 0.375, 0});
  expect_probabilities(token_probabilities(logits_of({0.4, 0.6}), GenerateOptions().top_k(9)), {0.4, 0.6});
  const at::Tensor equals = token_probabilities(logits_of({0.25, 0.25, 0.25, 0.25}), GenerateOptions().top_k(2));
  EXPECT_EQ((equals > 0).sum().item<int>(), 2);
}

TEST(TokenProbabilities, KeepThoseThatReachTheGivenSum) {
  const at::Tensor logits = logits_of({0.1, 0.5, 0.3, 0.1});
  expect_probabilities(token_probabilities(logits, GenerateOptions().top_p(0.79)), {0, 0.625, 0.375, 0});
  expect_probabilities(token_probabilities(logits, GenerateOptions().top_p(0.01)), {0, 1, 0, 0});
}

TEST(TokenSampler, TakesTheLikeliestAtTemperatureZero) {
  TokenSampler sampler(GenerateOptions().temperature(0));
  const at::Tensor logits = at::cat({logits_of({0.1, 0.6, 0.3}), logits_of({0.5, 0.2, 0.3})});
  EXPECT_TRUE(at::equal(sampler.draw(logits), at::tensor({1, 0}, at::kLong).view({2, 1})));
}

TEST(TokenSampler, DrawsAsOftenAsProbable) {
  TokenSampler sampler(GenerateOptions().seed(5));
  const at::Tensor drawn = sampler.draw(logits_of({0.1, 0.6, 0.3}).expand({20000, 3}));
  EXPECT_NEAR((drawn == 1).to(at::kFloat).mean().item<double>(), 0.6, 0.02);
  EXPECT_NEAR((drawn == 0).to(at::kFloat).mean().item<double>(), 0.1, 0.02);
}

TEST(TokenSampler, RepeatsItselfWithItsSeedWhateverOthersDraw) {
  const at::Tensor logits = at::zeros({50, 100});
  TokenSampler first(GenerateOptions().seed(5));
  TokenSampler second(GenerateOptions().seed(5));
  const at::Tensor drawn = first.draw(logits);
  at::rand({10});
  EXPECT_TRUE(at::equal(drawn, second.draw(logits)));
  EXPECT_FALSE(at::equal(drawn, TokenSampler(GenerateOptions().seed(6)).draw(logits)));
}

TEST(GenerateOptions, RefuseAllFaultsAtOnce) {
  const auto refused = [](const GenerateOptions& options) {
    return testing::message_of<ConfigError>([&] { TokenSampler{options}; });
  };
  testing::expect_parts(refused(GenerateOptions().max_new_tokens(-1).temperature(-1).top_k(-1).top_p(0)),
                        {"max_new_tokens", "temperature", "top_k", "top_p"});
  testing::expect_parts(refused(GenerateOptions().temperature(0).top_k(3)), {"temperature 0"});
}

}  // namespace
}  // namespace tessera::models
