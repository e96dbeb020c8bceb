#include <tessera/core/error.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpt2/hugging_face.h"

namespace tessera::models {
namespace {

using nlohmann::json;

/// The value of a key, or `fallback`, the default of `transformers`, when the file does not have it.
template <typename Value>
Value value_of(const json& document, const char* key, Value fallback) {
  const auto found = document.find(key);
  if (found == document.end() || found->is_null()) return fallback;
  const bool fits = std::is_same_v<Value, std::int64_t> ? found->is_number_integer() : found->is_number();
  if (!fits) throw ConfigError(std::string(key) + ": expected a number, found " + found->type_name());
  return found->get<Value>();
}

void require_switch(const json& document, const char* key, bool expected) {
  const auto found = document.find(key);
  if (found == document.end() || found->is_null() || (found->is_boolean() && found->get<bool>() == expected)) return;
  throw ConfigError(std::string(key) + ": this GPT-2 is made for " + (expected ? "true" : "false") + " only");
}

void require_text(const json& document, const char* key, std::initializer_list<const char*> accepted) {
  const auto found = document.find(key);
  if (found == document.end()) return;
  for (const char* text : accepted) {
    if (found->is_string() && found->get<std::string>() == text) return;
  }
  throw ConfigError(std::string(key) + ": expected " + *accepted.begin() + ", found another value");
}

Gpt2Config config_from(const json& document) {
  if (!document.is_object()) throw ConfigError(std::string("expected an object, found ") + document.type_name());
  require_text(document, "model_type", {"gpt2"});
  // Both names are those of the approximation by tanh.
  require_text(document, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  require_switch(document, "scale_attn_weights", true);
  require_switch(document, "scale_attn_by_inverse_layer_idx", false);
  require_switch(document, "add_cross_attention", false);
  require_switch(document, "tie_word_embeddings", true);
  const Gpt2Config defaults;
  return Gpt2Config()
      .vocab_size(value_of(document, "vocab_size", defaults.vocab_size()))
      .context(value_of(document, "n_positions", defaults.context()))
      .width(value_of(document, "n_embd", defaults.width()))
      .num_layers(value_of(document, "n_layer", defaults.num_layers()))
      .num_heads(value_of(document, "n_head", defaults.num_heads()))
      .mlp_width(value_of(document, "n_inner", defaults.mlp_width()))
      .embedding_dropout(value_of(document, "embd_pdrop", defaults.embedding_dropout()))
      .attention_dropout(value_of(document, "attn_pdrop", defaults.attention_dropout()))
      .residual_dropout(value_of(document, "resid_pdrop", defaults.residual_dropout()))
      .layer_norm_epsilon(value_of(document, "layer_norm_epsilon", defaults.layer_norm_epsilon()))
      .init_std(value_of(document, "initializer_range", defaults.init_std()));
}

}  // namespace

Gpt2Config parse_hugging_face_config(std::string_view text, const std::string& origin) {
  try {
    Gpt2Config config = config_from(json::parse(text.begin(), text.end()));
    config.check();
    return config;
  } catch (const json::exception& error) {
    throw ConfigError(origin + ": expected the configuration of a GPT-2 as JSON: " + error.what());
  } catch (const ConfigError& error) {
    throw ConfigError(origin + ": " + error.what());
  }
}

std::string to_hugging_face_config(const Gpt2Config& config) {
  json document = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", "gelu_new"},
      {"vocab_size", config.vocab_size()},
      {"n_positions", config.context()},
      {"n_ctx", config.context()},
      {"n_embd", config.width()},
      {"n_layer", config.num_layers()},
      {"n_head", config.num_heads()},
      {"n_inner", nullptr},
      {"embd_pdrop", config.embedding_dropout()},
      {"attn_pdrop", config.attention_dropout()},
      {"resid_pdrop", config.residual_dropout()},
      {"layer_norm_epsilon", config.layer_norm_epsilon()},
      {"initializer_range", config.init_std()},
      {"tie_word_embeddings", true},
  };
  if (config.mlp_width() != 0) document["n_inner"] = config.mlp_width();
  // The defaults of `transformers` are tokens of the full vocabulary, which another one need not have.
  if (config.vocab_size() != Gpt2Config().vocab_size()) {
    document["bos_token_id"] = nullptr;
    document["eos_token_id"] = nullptr;
  }
  return document.dump(2) + "\n";
}

}  // namespace tessera::models
