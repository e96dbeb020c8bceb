#include "gpt2/hugging_face.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "models/small_gpt2.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::models {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::small_config;
using testing::small_gpt2;
using testing::TemporaryFolder;

void expect_same(const Gpt2& a, const Gpt2& b) {
  const auto expected = b->named_parameters();
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), expected[item.key()])) << item.key();
  }
}

/// The model's weights under names without "transformer.", as the first files had them.
TensorsByName old_names(const Gpt2& model) {
  TensorsByName tensors;
  for (const auto& [name, tensor] : to_hugging_face(model)) {
    tensors.emplace(name.substr(std::string("transformer.").size()), tensor);
  }
  return tensors;
}

TEST(HuggingFace, GetsAModelBackAsItWas) {
  const TemporaryFolder folder;
  const Gpt2 model = small_gpt2(small_config().mlp_width(40).residual_dropout(0.25));
  save_gpt2(model, folder.path() / "model");
  const Gpt2 loaded = load_gpt2(folder.path() / "model");
  expect_same(loaded, model);
  EXPECT_EQ(loaded->config().mlp_width(), 40);
  EXPECT_EQ(loaded->config().residual_dropout(), 0.25);
  EXPECT_EQ(SafetensorsFile(folder.path() / "model" / "model.safetensors").layout().metadata().at("format"), "pt");
}

TEST(HuggingFace, HasTheShapesOfTheModel) {
  const Gpt2 model = small_gpt2();
  const TensorsByName tensors = to_hugging_face(model);
  EXPECT_EQ(tensors.size(), model->parameters().size());
  EXPECT_EQ(tensors.at("transformer.h.0.attn.c_attn.weight").sizes(), at::IntArrayRef({24, 72}));
  EXPECT_EQ(tensors.at("transformer.h.1.mlp.c_proj.weight").sizes(), at::IntArrayRef({96, 24}));
  EXPECT_EQ(tensors.at("transformer.wte.weight").sizes(), at::IntArrayRef({31, 24}));
  EXPECT_TRUE(
      at::equal(tensors.at("transformer.h.0.attn.c_proj.weight"), model->named_parameters()["h.0.attn.c_proj.weight"]));
}

TEST(HuggingFace, ReadsOldNamesMasksAndAHeadThatIsTied) {
  const TemporaryFolder folder;
  const Gpt2 model = small_gpt2();
  TensorsByName tensors = old_names(model);
  tensors.emplace("h.0.attn.bias", at::ones({1, 1, 16, 16}).tril());
  tensors.emplace("h.1.attn.masked_bias", at::scalar_tensor(-1e4));
  tensors.emplace("lm_head.weight", tensors.at("wte.weight"));
  save_safetensors(folder.file("f"), tensors);
  Gpt2 loaded(model->config());
  load_hugging_face(loaded, SafetensorsFolder(folder.file("f")));
  expect_same(loaded, model);
}

TEST(HuggingFace, ConvertsToTheTypeOfTheModel) {
  const TemporaryFolder folder;
  Gpt2 half = small_gpt2();
  half->to(at::kBFloat16);
  save_gpt2(half, folder.path());
  const Gpt2 loaded = load_gpt2(folder.path());
  EXPECT_EQ(loaded->parameters()[0].scalar_type(), at::kFloat);
  half->to(at::kFloat);
  expect_same(loaded, half);
}

TEST(HuggingFace, RefusesOtherWeightsAndLeavesTheModelAlone) {
  const TemporaryFolder folder;
  const Gpt2 model = small_gpt2();
  TensorsByName tensors = old_names(model);
  tensors.erase("h.0.ln_1.weight");
  tensors.at("h.1.mlp.c_fc.weight") = tensors.at("h.1.mlp.c_fc.weight").t().contiguous();
  tensors.at("ln_f.bias") = tensors.at("ln_f.bias").to(at::kLong);
  tensors.emplace("h.2.ln_1.weight", at::ones({24}));
  tensors.emplace("lm_head.weight", tensors.at("wte.weight") + 1);
  save_safetensors(folder.file("f"), tensors);
  Gpt2 other = small_gpt2(small_config());
  const Gpt2 before = small_gpt2(small_config());
  expect_parts(message_of<ConfigError>([&] { load_hugging_face(other, SafetensorsFolder(folder.file("f"))); }),
               {"/f", "h.0.ln_1.weight is missing", "h.1.mlp.c_fc.weight has the shape [96, 24], expected [24, 96]",
                "ln_f.bias is of I64", "h.2.ln_1.weight is there", "lm_head.weight is not wte.weight"});
  expect_same(other, before);
}

TEST(HuggingFaceConfig, TakesTheDefaultsOfTransformers) {
  EXPECT_EQ(parse_hugging_face_config(R"({"model_type": "gpt2"})", "text").num_parameters(), 124'439'808);
  const auto config = parse_hugging_face_config(
      R"({"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_inner": null, "attn_pdrop": 0})", "text");
  EXPECT_EQ(config.num_parameters(), 354'823'168);
  EXPECT_EQ(config.attention_dropout(), 0);
}

TEST(HuggingFaceConfig, RefusesWhatThisModelIsNot) {
  const auto refused = [](const std::string& text) {
    return message_of<ConfigError>([&] { parse_hugging_face_config(text, "config.json"); });
  };
  expect_parts(refused("{"), {"config.json", "JSON"});
  expect_parts(refused("[]"), {"config.json", "object"});
  expect_parts(refused(R"({"model_type": "llama"})"), {"model_type", "gpt2"});
  expect_parts(refused(R"({"activation_function": "relu"})"), {"activation_function", "gelu_new"});
  expect_parts(refused(R"({"scale_attn_by_inverse_layer_idx": true})"), {"scale_attn_by_inverse_layer_idx", "false"});
  expect_parts(refused(R"({"tie_word_embeddings": false})"), {"tie_word_embeddings", "true"});
  expect_parts(refused(R"({"n_layer": 1.5})"), {"n_layer", "number"});
  expect_parts(refused(R"({"n_layer": "12"})"), {"n_layer", "string"});
  expect_parts(refused(R"({"n_head": 7})"), {"config.json", "num_heads is 7"});
}

}  // namespace
}  // namespace tessera::models
