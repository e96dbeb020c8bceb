#pragma once

#include <tessera/checkpoint/safetensors_folder.h>

#include <filesystem>
#include <string_view>

#include "gpt2/gpt2.h"

namespace tessera::models {

// Note [Hugging Face's GPT-2]
// Files of `transformers` hold the parameters with the names and shapes of Gpt2; files of GPT2LMHeadModel have
// "transformer." before the name. Old files carry the causal mask of each layer (`h.0.attn.bias`,
// `h.0.attn.masked_bias`), which says nothing about the model and is skipped; an `lm_head.weight` must equal the token
// embedding.

/// Gives the model the weights of a file. Weights of another floating-point type are converted to the model's.
/// Throws ConfigError, naming them and with the model unchanged, for tensors that are missing, too many, or of another
/// shape.
void load_hugging_face(Gpt2& model, const SafetensorsFolder& weights);

/// The weights under the names and in the shapes of GPT2LMHeadModel, in memory of their own.
TensorsByName to_hugging_face(const Gpt2& model);

/// Reads a config.json of `transformers`. Refuses settings that Gpt2 does not have (another activation, attention
/// scaled by layer, an untied output layer). Throws ConfigError; `origin` names the text.
Gpt2Config parse_hugging_face_config(std::string_view text, const std::string& origin);
std::string to_hugging_face_config(const Gpt2Config& config);

/// A folder with config.json and weights, as `save_pretrained` writes and `from_pretrained` reads it.
Gpt2 load_gpt2(const std::filesystem::path& folder);
/// Blocks: for the disk.
void save_gpt2(const Gpt2& model, const std::filesystem::path& folder);

}  // namespace tessera::models
