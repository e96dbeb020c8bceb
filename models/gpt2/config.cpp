#include "gpt2/config.h"

#include <tessera/core/error.h>

#include <array>
#include <utility>

namespace tessera::models {
namespace {

struct Size {
  const char* name;
  std::int64_t vocab_size;
  std::int64_t context;
  std::int64_t width;
  std::int64_t num_layers;
  std::int64_t num_heads;
};

constexpr std::array kSizes = {
    Size{"gpt2", 50257, 1024, 768, 12, 12},        Size{"gpt2-medium", 50257, 1024, 1024, 24, 16},
    Size{"gpt2-large", 50257, 1024, 1280, 36, 20}, Size{"gpt2-xl", 50257, 1024, 1600, 48, 25},
    Size{"gpt2-mini", 256, 256, 256, 6, 8},        Size{"gpt2-tiny", 256, 64, 64, 2, 4},
};

}  // namespace

const FieldList<Gpt2Config>& Gpt2Config::fields() {
  static const FieldList<Gpt2Config> list =
      FieldList<Gpt2Config>("gpt2")
          .add("vocab_size", &Gpt2Config::vocab_size_, "Tokens are numbers below this; 256 for bytes.")
          .add("context", &Gpt2Config::context_, "The longest text that the model sees, in tokens.")
          .add("width", &Gpt2Config::width_, "The numbers that stand for a token inside the model.")
          .add("num_layers", &Gpt2Config::num_layers_, "Blocks of attention and multilayer perceptron.")
          .add("num_heads", &Gpt2Config::num_heads_, "Heads of attention; they divide the width.")
          .add("mlp_width", &Gpt2Config::mlp_width_,
               "The inner width of the multilayer perceptron; 0 for four times the width.")
          .add("embedding_dropout", &Gpt2Config::embedding_dropout_, "Share of the embeddings dropped in training.")
          .add("attention_dropout", &Gpt2Config::attention_dropout_, "Share of the attention dropped in training.")
          .add("residual_dropout", &Gpt2Config::residual_dropout_, "Share dropped in training of what a block adds.")
          .add("layer_norm_epsilon", &Gpt2Config::layer_norm_epsilon_, "What LayerNorm adds to the variance.")
          .add("init_std", &Gpt2Config::init_std_, "The standard deviation of fresh weights.");
  return list;
}

Gpt2Config Gpt2Config::named(const std::string& name) {
  for (const Size& size : kSizes) {
    if (name != size.name) continue;
    return Gpt2Config()
        .vocab_size(size.vocab_size)
        .context(size.context)
        .width(size.width)
        .num_layers(size.num_layers)
        .num_heads(size.num_heads);
  }
  std::string message = "there is no GPT-2 called \"" + name + "\"; the sizes are";
  for (const Size& size : kSizes) message += std::string(" ") + size.name;
  throw ConfigError(message);
}

std::vector<std::string> Gpt2Config::names() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

void Gpt2Config::check() const {
  std::string faults;
  const std::array sizes = {std::pair{"vocab_size", vocab_size()}, std::pair{"context", context()},
                            std::pair{"width", width()}, std::pair{"num_layers", num_layers()},
                            std::pair{"num_heads", num_heads()}};
  for (const auto& [key, value] : sizes) {
    if (value <= 0) faults += "\n  " + std::string(key) + " is " + std::to_string(value) + "; it must be above 0";
  }
  if (num_heads() > 0 && width() % num_heads() != 0) {
    faults += "\n  num_heads is " + std::to_string(num_heads()) + ", which does not divide the width " +
              std::to_string(width());
  }
  if (mlp_width() < 0) faults += "\n  mlp_width is " + std::to_string(mlp_width()) + "; it must not be below 0";
  const std::array shares = {std::pair{"embedding_dropout", embedding_dropout()},
                             std::pair{"attention_dropout", attention_dropout()},
                             std::pair{"residual_dropout", residual_dropout()}};
  for (const auto& [key, value] : shares) {
    const bool is_share = value >= 0 && value < 1;  // false for NaN
    if (!is_share) {
      faults += "\n  " + std::string(key) + " is " + std::to_string(value) + "; it must be at least 0 and below 1";
    }
  }
  if (!(layer_norm_epsilon() > 0)) faults += "\n  layer_norm_epsilon must be above 0";
  if (!(init_std() >= 0)) faults += "\n  init_std must not be below 0";
  if (!faults.empty()) throw ConfigError("this GPT-2 cannot be:" + faults);
}

std::int64_t Gpt2Config::num_parameters() const {
  const std::int64_t norm = 2 * width();
  const auto linear = [](std::int64_t in, std::int64_t out) { return in * out + out; };
  const std::int64_t attention = linear(width(), 3 * width()) + linear(width(), width());
  const std::int64_t mlp = linear(width(), inner_width()) + linear(inner_width(), width());
  return (vocab_size() + context()) * width() + num_layers() * (2 * norm + attention + mlp) + norm;
}

}  // namespace tessera::models
