#include "gpt2/gpt2.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "models/small_gpt2.h"
#include "support/error_message.h"

namespace tessera::models {
namespace {

using testing::small_config;
using testing::small_gpt2;
using testing::some_tokens;

TEST(Gpt2, HasTheParametersThatItsConfigCounts) {
  for (const Gpt2Config& config : {Gpt2Config::named("gpt2-tiny"), small_config().mlp_width(17)}) {
    std::int64_t count = 0;
    for (const at::Tensor& parameter : Gpt2(config)->parameters()) count += parameter.numel();
    EXPECT_EQ(count, config.num_parameters());
  }
}

TEST(Gpt2, NamesItsParametersAsHuggingFaceDoes) {
  const Gpt2 model(small_config().num_layers(1));
  std::set<std::string> names;
  for (const auto& item : model->named_parameters()) names.insert(item.key());
  const std::set<std::string> expected = {"wte.weight",
                                          "wpe.weight",
                                          "ln_f.weight",
                                          "ln_f.bias",
                                          "h.0.ln_1.weight",
                                          "h.0.ln_1.bias",
                                          "h.0.ln_2.weight",
                                          "h.0.ln_2.bias",
                                          "h.0.attn.c_attn.weight",
                                          "h.0.attn.c_attn.bias",
                                          "h.0.attn.c_proj.weight",
                                          "h.0.attn.c_proj.bias",
                                          "h.0.mlp.c_fc.weight",
                                          "h.0.mlp.c_fc.bias",
                                          "h.0.mlp.c_proj.weight",
                                          "h.0.mlp.c_proj.bias"};
  EXPECT_EQ(names, expected);
}

TEST(Gpt2, SeesNoTokenThatComesLater) {
  Gpt2 model = small_gpt2();
  const at::Tensor tokens = some_tokens(1, 12);
  at::Tensor changed = tokens.clone();
  changed[0][7] = (tokens[0][7] + 1).remainder(31);
  const at::Tensor difference = (model(tokens) - model(changed)).abs().amax({0, 2});
  EXPECT_LT(difference.narrow(0, 0, 7).max().item<double>(), 1e-5);
  EXPECT_GT(difference.narrow(0, 7, 5).min().item<double>(), 1e-3);
}

TEST(Gpt2, StartsWithoutAPreference) {
  torch::manual_seed(3);
  Gpt2 model(small_config());
  const at::Tensor tokens = some_tokens(2, 16);
  EXPECT_NEAR(model->loss(tokens, tokens.roll(-1, 1)).item<double>(), std::log(31.0), 0.05);
}

TEST(Gpt2, DrawsWeightsAsGpt2Does) {
  Gpt2 model(small_config().width(96).num_layers(8));
  model->reset_parameters(at::detail::createCPUGenerator(1));
  const auto parameters = model->named_parameters();
  const auto std_of = [&](const std::string& name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(std_of("wpe.weight"), 0.02, 0.002);
  EXPECT_NEAR(std_of("h.3.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(std_of("h.3.attn.c_proj.weight"), 0.02 / 4, 0.0003);
  EXPECT_NEAR(std_of("h.3.mlp.c_proj.weight"), 0.02 / 4, 0.0003);
  EXPECT_TRUE(at::equal(parameters["h.3.ln_1.weight"], at::ones({96})));
  EXPECT_TRUE(at::equal(parameters["h.3.mlp.c_fc.bias"], at::zeros({4 * 96})));
  const at::Tensor former = parameters["wte.weight"].clone();
  model->reset_parameters(at::detail::createCPUGenerator(1));
  EXPECT_TRUE(at::equal(parameters["wte.weight"], former));
}

TEST(Gpt2, DropsInTrainingOnly) {
  for (const Gpt2Config& config : {small_config().embedding_dropout(0.5), small_config().attention_dropout(0.5),
                                   small_config().residual_dropout(0.5)}) {
    Gpt2 model = small_gpt2(Gpt2Config(config).init_std(0.3));
    const at::Tensor tokens = some_tokens(1, 8);
    EXPECT_FALSE(at::equal(model(tokens), model(tokens)));
    model->eval();
    EXPECT_TRUE(at::equal(model(tokens), model(tokens)));
  }
}

TEST(Gpt2, LearnsAText) {
  Gpt2 model = small_gpt2(small_config());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor text = some_tokens(2, 17);
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    const at::Tensor value = model->loss(text.narrow(1, 0, 16), text.narrow(1, 1, 16));
    loss = value.item<double>();
    optimizer.zero_grad();
    value.backward();
    optimizer.step();
  }
  EXPECT_LT(loss, 0.2);
}

TEST(Gpt2, DoesNotCountTargetsThatAreMarked) {
  Gpt2 model = small_gpt2();
  const at::Tensor tokens = some_tokens(1, 10);
  at::Tensor targets = tokens.clone();
  targets.narrow(1, 5, 5).fill_(-100);
  const double expected = model->loss(tokens.narrow(1, 0, 5), tokens.narrow(1, 0, 5)).item<double>();
  EXPECT_NEAR(model->loss(tokens, targets).item<double>(), expected, 1e-4);
}

TEST(Gpt2, ContinuesFromItsCache) {
  Gpt2 model = small_gpt2();
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens(2, 14);
  const at::Tensor expected = model(tokens);
  KvCache cache = model->make_cache(2);
  std::vector<at::Tensor> parts;
  // A first part, one token, and several behind others: the three ways to mask.
  for (const auto& [start, length] : {std::pair{0, 5}, {5, 1}, {6, 6}, {12, 2}}) {
    parts.push_back(model->logits(model->features(tokens.narrow(1, start, length), &cache)));
  }
  EXPECT_EQ(cache.length(), 14);
  EXPECT_LT((at::cat(parts, 1) - expected).abs().max().item<double>(), 1e-4);
}

TEST(Gpt2, RefusesWhatItCannotSee) {
  Gpt2 model = small_gpt2();
  testing::expect_parts(testing::message_of<ConfigError>([&] { model(some_tokens(1, 17)); }), {"16 tokens", "17"});
  testing::expect_parts(testing::message_of<ConfigError>([&] { model(at::zeros({3}, at::kLong)); }),
                        {"two dimensions"});
  testing::expect_parts(testing::message_of<ConfigError>([&] { model->loss(some_tokens(1, 4), some_tokens(1, 5)); }),
                        {"target"});
  testing::expect_parts(testing::message_of<ConfigError>([] { Gpt2(small_config().num_heads(5)); }), {"num_heads"});
}

TEST(TransposedLinear, AddsTheBiasInsideTheProduct) {
  TransposedLinear linear(24, 16);
  const at::NoGradGuard no_grad;
  linear->weight.copy_(at::sin(at::arange(24 * 16)).view({24, 16}));
  linear->bias.copy_(at::cos(at::arange(16)));
  linear->to(at::kBFloat16);
  const at::Tensor x = at::sin(at::arange(2 * 5 * 24) * 0.7).view({2, 5, 24}).to(at::kBFloat16);
  const at::Tensor expected = at::addmm(linear->bias, x.view({10, 24}), linear->weight).view({2, 5, 16});
  EXPECT_TRUE(at::equal(linear(x), expected));
}

}  // namespace
}  // namespace tessera::models
