#include "gpt2/generate.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "generation/byte_tokens.h"
#include "models/small_gpt2.h"
#include "support/error_message.h"

namespace tessera::models {
namespace {

using testing::small_gpt2;
using testing::some_tokens;

TEST(Generate, GivesTheSameTextWithItsCacheAndWithout) {
  Gpt2 model = small_gpt2();
  // 60 tokens in a context of 16: the window moves several times.
  for (const auto& options : {GenerateOptions().temperature(0), GenerateOptions().seed(11),
                              GenerateOptions().seed(12).top_k(5).temperature(0.8), GenerateOptions().top_p(0.9)}) {
    const auto sixty = GenerateOptions(options).max_new_tokens(60);
    for (const std::int64_t length : {1, 5, 16, 20}) {
      const at::Tensor start = some_tokens(2, length);
      const at::Tensor with = generate(model, start, sixty);
      const at::Tensor without = generate(model, start, GenerateOptions(sixty).use_cache(false));
      EXPECT_EQ(with.size(1), length + 60);
      EXPECT_TRUE(at::equal(with, without)) << with << without;
      EXPECT_TRUE(at::equal(with.narrow(1, 0, length), start));
    }
  }
}

TEST(Generate, TakesTheLikeliestTokensOfTheModel) {
  Gpt2 model = small_gpt2();
  at::Tensor expected = some_tokens(1, 3);
  for (int i = 0; i < 10; ++i) expected = at::cat({expected, model(expected).select(1, -1).argmax(-1, true)}, 1);
  EXPECT_TRUE(
      at::equal(generate(model, some_tokens(1, 3), GenerateOptions().temperature(0).max_new_tokens(10)), expected));
}

TEST(Generate, EndsWhenAllTextsReachedTheStopToken) {
  Gpt2 model = small_gpt2();
  const auto options = GenerateOptions().seed(3).max_new_tokens(400);
  const at::Tensor free = generate(model, some_tokens(2, 2), options);
  const std::int64_t stop = free[0][7].item<std::int64_t>();
  const at::Tensor stopped = generate(model, some_tokens(2, 2), GenerateOptions(options).stop_token(stop));
  EXPECT_LT(stopped.size(1), 402);
  EXPECT_TRUE((stopped.select(1, -1) == stop).all().item<bool>());
  // Behind the stop token there is nothing else.
  const at::Tensor ended = (stopped.narrow(1, 2, stopped.size(1) - 2) == stop).to(at::kLong);
  EXPECT_TRUE(at::equal(std::get<0>(ended.cummax(1)), ended));
}

TEST(Generate, TurnsDropoutOffMeanwhile) {
  Gpt2 model = small_gpt2(testing::small_config().init_std(0.3).dropout(0.5));
  const auto options = GenerateOptions().temperature(0).max_new_tokens(12);
  ASSERT_TRUE(model->is_training());
  const at::Tensor text = generate(model, some_tokens(1, 4), options);
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(at::equal(text, generate(model, some_tokens(1, 4), options)));
  model->eval();
  generate(model, some_tokens(1, 4), options);
  EXPECT_FALSE(model->is_training());
}

TEST(Generate, RefusesToContinueNothing) {
  Gpt2 model = small_gpt2();
  testing::expect_parts(testing::message_of<ConfigError>([&] { generate(model, some_tokens(1, 0)); }), {"one token"});
}

TEST(WindowStart, KeepsAtLeastHalfOfTheContextAndMovesSeldom) {
  for (const std::int64_t context : {1, 2, 5, 16}) {
    std::int64_t num_moves = 0;
    for (std::int64_t length = 1; length < 100; ++length) {
      const std::int64_t seen = length - window_start(length, context);
      EXPECT_GE(seen, std::min(length, (context + 1) / 2));
      EXPECT_LE(seen, context);
      if (length > 1 && window_start(length, context) != window_start(length - 1, context)) ++num_moves;
    }
    EXPECT_LE(num_moves, 99 / ((context + 1) / 2) + 1);
  }
}

TEST(ByteTokens, SurviveBothWays) {
  const std::string text = std::string(
      "Gr\xc3\xbc\xc3\x9f"
      "e\n\0\xff",
      10);
  EXPECT_EQ(bytes_to_tokens(text).sizes(), at::IntArrayRef({1, 10}));
  EXPECT_EQ(tokens_to_bytes(bytes_to_tokens(text)), text);
  EXPECT_EQ(bytes_to_tokens("\xff").item<std::int64_t>(), 255);
  testing::expect_parts(testing::message_of<ConfigError>([] { tokens_to_bytes(at::tensor({65, 256})); }),
                        {"256", "place 1"});
}

}  // namespace
}  // namespace tessera::models
