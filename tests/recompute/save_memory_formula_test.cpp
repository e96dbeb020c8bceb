// Bytes that a layer of GPT-2 keeps, against the formulas of docs/guides/memory_strategies.md.
#include <tessera/intercept/memory_count.h>
#include <tessera/recompute/save_memory.h>

#include <torch/utils.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gpt2/gpt2.h"

namespace tessera {
namespace {

constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kTokens = 32;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kHeads = 4;

/// After a forward, and what the report says of it.
std::pair<std::int64_t, std::int64_t> kept_by(const std::string& strategy, std::int64_t num_layers) {
  const auto model = std::make_shared<models::Gpt2Impl>(models::Gpt2Config()
                                                            .vocab_size(32)
                                                            .context(kTokens)
                                                            .width(kWidth)
                                                            .num_layers(num_layers)
                                                            .num_heads(kHeads)
                                                            .dropout(0.1)
                                                            .attention_dropout(0));
  const MemorySaving saved = save_memory(model, SaveMemoryOptions().strategy(strategy));
  const at::Tensor tokens = at::arange(kSequences * kTokens).remainder(31).view({kSequences, kTokens});
  model->loss(tokens, tokens).backward();  // what is made once is there
  const intercept::MemoryCount memory;
  const at::Tensor loss = model->loss(tokens, tokens);
  return {memory.live_bytes(), saved.report().kept_bytes};
}

TEST(SaveMemoryFormula, HoldsForALayerOfGpt2) {
  const std::int64_t x = kSequences * kTokens * kWidth * 4;
  const std::int64_t norms = 4 * kSequences * kTokens * 4;
  const std::int64_t sums = kSequences * kTokens * kHeads * 4;
  const std::int64_t state = 5056;  // of the CPU's generator
  const auto of_a_layer = [](const std::string& strategy) {
    const auto few = kept_by(strategy, 2);
    const auto many = kept_by(strategy, 4);
    return std::pair((many.first - few.first) / 2, (many.second - few.second) / 2);
  };
  EXPECT_EQ(of_a_layer("basic").first, 18 * x + norms + sums);
  const auto standard = of_a_layer("standard");
  EXPECT_EQ(standard.first, 10 * x + norms + sums + 2 * state);
  EXPECT_EQ(standard.second, 10 * x + norms + sums) << "the report, which does not count states";
  const auto aggressive = of_a_layer("aggressive");
  EXPECT_EQ(aggressive.first, x + 2 * state);
  EXPECT_EQ(aggressive.second, x);
}

}  // namespace
}  // namespace tessera
