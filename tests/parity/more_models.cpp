#include "parity/more_models.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include "gpt2/gpt2.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;
namespace functional = torch::nn::functional;

constexpr int kSmallBatch = 4;

/// LibTorch's own, encoder and decoder.
struct WholeTransformer : ParityModel {
  explicit WholeTransformer(double dropout)
      : layers(register_module(
            "layers",
            nn::Transformer(nn::TransformerOptions(kWidth, 2, 1, 1).dim_feedforward(2 * kWidth).dropout(dropout)))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return layers->forward(input, input.narrow(0, 0, 2)); }
  torch::Tensor input(int step, int part) const override {
    return formula({3, kSmallBatch, kWidth}, 2 * step + part, parameters().front().scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output - formula({2, kSmallBatch, kWidth}, step + 3 * part, output.scalar_type()).to(output.device()))
        .square()
        .mean();
  }

  static constexpr int kWidth = 8;
  nn::Transformer layers;
};

/// As BERT: tokens, places and segments, encoder layers, a pooled first token.
struct Bert : ParityModel {
  explicit Bert(double dropout)
      : tokens(register_module("tokens", nn::Embedding(kVocabulary, kWidth))),
        places(register_module("places", nn::Embedding(kLength, kWidth))),
        segments(register_module("segments", nn::Embedding(2, kWidth))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        dropout_layer(register_module("dropout", nn::Dropout(dropout))),
        layers(register_module(
            "layers", nn::TransformerEncoder(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(kWidth, 4)
                                                                             .dim_feedforward(2 * kWidth)
                                                                             .dropout(dropout)
                                                                             .activation(torch::kGELU)),
                                             2))),
        pooler(register_module("pooler", nn::Linear(kWidth, kWidth))),
        head(register_module("head", nn::Linear(kWidth, 3))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto segment = torch::arange(kLength, input.device()).ge(2).to(torch::kLong);
    const auto place = places(torch::arange(kLength, input.device())) + segments(segment);
    const auto x = dropout_layer(norm(tokens(input) + place.unsqueeze(1)));
    const auto hidden = layers(x);
    return head(torch::tanh(pooler(hidden.select(0, 0))));
  }
  torch::Tensor input(int step, int part) const override {
    return classes(step, part, kLength * kSmallBatch, kVocabulary).view({kLength, kSmallBatch});
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output, classes(step, part, kSmallBatch, 3).to(output.device()));
  }

  static constexpr int kVocabulary = 17;
  static constexpr int kLength = 6;
  static constexpr int kWidth = 16;
  nn::Embedding tokens;
  nn::Embedding places;
  nn::Embedding segments;
  nn::LayerNorm norm;
  nn::Dropout dropout_layer;
  nn::TransformerEncoder layers;
  nn::Linear pooler;
  nn::Linear head;
};

/// As a vision transformer: patches by a convolution, a class token in front, learnt places.
struct VisionTransformer : ParityModel {
  explicit VisionTransformer(double dropout)
      : patches(register_module("patches", nn::Conv2d(nn::Conv2dOptions(2, kWidth, 2).stride(2)))),
        class_token(register_parameter("class_token", torch::zeros({1, 1, kWidth}))),
        places(register_parameter("places", torch::zeros({5, 1, kWidth}))),
        layers(register_module(
            "layers", nn::TransformerEncoder(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(kWidth, 3)
                                                                             .dim_feedforward(2 * kWidth)
                                                                             .dropout(dropout)
                                                                             .activation(torch::kGELU)),
                                             2))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        head(register_module("head", nn::Linear(kWidth, 5))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto patch = patches(input).flatten(2).permute({2, 0, 1});
    const auto x = torch::cat({class_token.expand({1, input.size(0), kWidth}), patch}) + places;
    return head(norm(layers(x)).select(0, 0));
  }
  torch::Tensor input(int step, int part) const override {
    return formula({kSmallBatch, 2, 4, 4}, 3 * step + part, head->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output, classes(step, part, kSmallBatch, 5).to(output.device()));
  }

  static constexpr int kWidth = 12;
  nn::Conv2d patches;
  torch::Tensor class_token;
  torch::Tensor places;
  nn::TransformerEncoder layers;
  nn::LayerNorm norm;
  nn::Linear head;
};

/// Two convolutions and what was there before.
struct ResidualBlock : nn::Module {
  explicit ResidualBlock(std::int64_t channels)
      : first(register_module("first", convolution(channels))),
        first_norm(register_module("first_norm", nn::BatchNorm2d(channels))),
        second(register_module("second", convolution(channels))),
        second_norm(register_module("second_norm", nn::BatchNorm2d(channels))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = torch::tanh(first_norm(first(x)));
    return torch::tanh(second_norm(second(inner)) + x);
  }
  static nn::Conv2d convolution(std::int64_t channels) {
    return nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false));
  }

  nn::Conv2d first;
  nn::BatchNorm2d first_norm;
  nn::Conv2d second;
  nn::BatchNorm2d second_norm;
};

/// As a ResNet. With tanh(): rounding would decide on which side of relu()'s corner a sum lies.
struct ResidualNet : ParityModel {
  ResidualNet()
      : stem(register_module("stem", nn::Conv2d(nn::Conv2dOptions(2, kChannels, 3).padding(1).bias(false)))),
        stem_norm(register_module("stem_norm", nn::BatchNorm2d(kChannels))),
        blocks(register_module("blocks", nn::Sequential(ResidualBlock(kChannels), ResidualBlock(kChannels)))),
        head(register_module("head", nn::Linear(kChannels, 3))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = functional::avg_pool2d(torch::tanh(stem_norm(stem(input))), functional::AvgPool2dFuncOptions(2));
    const auto y = functional::adaptive_avg_pool2d(blocks->forward(x), functional::AdaptiveAvgPool2dFuncOptions(1));
    return head(y.flatten(1));
  }
  torch::Tensor input(int step, int part) const override {
    return formula({kSmallBatch, 2, 6, 6}, 3 * step + part, head->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output, classes(step, part, kSmallBatch, 3).to(output.device()));
  }

  static constexpr int kChannels = 6;
  nn::Conv2d stem;
  nn::BatchNorm2d stem_norm;
  nn::Sequential blocks;
  nn::Linear head;
};

struct Attention : ParityModel {
  Attention()
      // Keys and values of another width: three matrices instead of one.
      : attention(register_module("attention",
                                  nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(6)))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    return std::get<0>(attention->forward(input, input.narrow(2, 0, 6), input.narrow(2, 2, 6)));
  }
  torch::Tensor input(int step, int part) const override {
    return formula({3, kSmallBatch, 8}, 2 * step + part, attention->out_proj->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output - formula({3, kSmallBatch, 8}, step + 3 * part, output.scalar_type()).to(output.device()))
        .square()
        .mean();
  }

  nn::MultiheadAttention attention;
};

struct Chain : ParityModel {
  Chain()
      : layers(register_module("layers",
                               nn::Sequential(nn::Linear(6, 16), nn::Tanh(), nn::LayerNorm(nn::LayerNormOptions({16})),
                                              nn::Linear(16, 16), nn::GELU(), nn::Linear(16, 3)))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return layers->forward(input); }
  torch::Tensor input(int step, int part) const override {
    return formula({kSmallBatch, 6}, 3 * step + part, parameters().front().scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output, classes(step, part, kSmallBatch, 3).to(output.device()));
  }

  nn::Sequential layers;
};

/// Two convolutions and a norm: a level of the model below.
struct Level : nn::Module {
  Level(std::int64_t inputs, std::int64_t channels)
      : first(register_module("first", convolution(inputs, channels))),
        second(register_module("second", convolution(channels, channels))),
        norm(register_module("norm", nn::GroupNorm(nn::GroupNormOptions(2, channels).eps(kEpsilon)))) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(norm(second(torch::tanh(first(x))))); }
  static nn::Conv2d convolution(std::int64_t inputs, std::int64_t channels) {
    return nn::Conv2d(nn::Conv2dOptions(inputs, channels, 3).padding(1).bias(false));
  }

  // The few values of the lowest level differ by little: a smaller one would make their rounding as large.
  static constexpr double kEpsilon = 0.1;
  nn::Conv2d first;
  nn::Conv2d second;
  nn::GroupNorm norm;
};

/// As a U-Net: what each level gives on the way down skips all that lies below it.
struct UNet : ParityModel {
  UNet()
      : stem(register_module("stem", nn::Conv2d(nn::Conv2dOptions(2, kChannels, 1)))),
        down(register_module("down", nn::ModuleList())),
        middle(register_module("middle", nn::Conv2d(nn::Conv2dOptions(kChannels, kChannels, 1)))),
        up(register_module("up", nn::ModuleList())),
        head(register_module("head", nn::Conv2d(nn::Conv2dOptions(kChannels, kResults, 1)))) {
    for (std::size_t i = 0; i < kNumLevels; ++i) down->push_back(Level(kChannels, kChannels));
    for (std::size_t i = 0; i < kNumLevels; ++i) up->push_back(Level(2 * kChannels, kChannels));
  }

  torch::Tensor forward(const torch::Tensor& input) override {
    std::vector<torch::Tensor> skips;
    torch::Tensor x = stem(input);
    for (const auto& level : *down) {
      skips.push_back(level->as<Level>()->forward(x));
      x = functional::avg_pool2d(skips.back(), functional::AvgPool2dFuncOptions(2));
    }
    x = torch::tanh(middle(x));
    for (const auto& level : *up) {
      const auto larger = x.repeat_interleave(2, 2).repeat_interleave(2, 3);
      x = level->as<Level>()->forward(torch::cat({larger, skips.back()}, 1));
      skips.pop_back();
    }
    return head(x);
  }
  torch::Tensor input(int step, int part) const override {
    return formula({2, 2, kLength, kLength}, 3 * step + part, stem->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output -
            formula({2, kResults, kLength, kLength}, step + 2 * part, output.scalar_type()).to(output.device()))
        .square()
        .mean();
  }

  static constexpr std::int64_t kChannels = 4;
  // One bias alone may come near zero while it is trained, where single precision has few digits of it.
  static constexpr std::int64_t kResults = 3;
  static constexpr std::int64_t kLength = 8;
  static constexpr std::size_t kNumLevels = 3;
  nn::Conv2d stem;
  nn::ModuleList down;
  nn::Conv2d middle;
  nn::ModuleList up;
  nn::Conv2d head;
};

/// The library's own.
struct LibraryGpt2 : ParityModel {
  explicit LibraryGpt2(double dropout)
      : gpt2(register_module("gpt2", models::Gpt2(models::Gpt2Config()
                                                      .vocab_size(kVocabulary)
                                                      .context(kLength)
                                                      .width(8)
                                                      .num_layers(2)
                                                      .num_heads(2)
                                                      .dropout(dropout)))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return gpt2->forward(input); }
  torch::Tensor input(int step, int part) const override {
    return classes(step, part, kLength * kSmallBatch, kVocabulary).view({kSmallBatch, kLength});
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output.reshape({-1, kVocabulary}),
                                     classes(step + 1, part, kLength * kSmallBatch, kVocabulary).to(output.device()));
  }

  static constexpr int kVocabulary = 13;
  static constexpr int kLength = 5;
  models::Gpt2 gpt2;
};

/// tanh(x W^T) with a backward of its own, which reads the weight that forward saved.
struct TanhLayer : torch::autograd::Function<TanhLayer> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    auto y = torch::tanh(x.matmul(weight.t()));
    context->save_for_backward({x, weight, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto inner = gradients[0] * (1 - saved[2].square());
    return {inner.matmul(saved[1]), inner.t().matmul(saved[0])};
  }
};

struct WithFunction : ParityModel {
  WithFunction()
      : first(register_module("first", nn::Linear(6, 12))),
        second(register_parameter("second", torch::zeros({12, 12}))),
        third(register_module("third", nn::Linear(12, 2))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = TanhLayer::apply(first(input), second);
    return third(x + TanhLayer::apply(x, second));
  }
  torch::Tensor input(int step, int part) const override {
    return formula({kSmallBatch, 6}, 3 * step + part, second.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output - formula({kSmallBatch, 2}, step + 2 * part, output.scalar_type()).to(output.device()))
        .square()
        .mean();
  }

  nn::Linear first;
  torch::Tensor second;
  nn::Linear third;
};

}  // namespace

torch::Tensor classes(int step, int part, int count, int num_classes) {
  return (torch::arange(count, torch::kLong) * 7 + 5 * step + 3 * part) % num_classes;
}

std::shared_ptr<ParityModel> make_further_model(const std::string& full_name) {
  const std::string suffix = " with dropout";
  const bool drops = full_name.ends_with(suffix);
  const std::string name = drops ? full_name.substr(0, full_name.size() - suffix.size()) : full_name;
  const double dropout = drops ? 0.1 : 0;
  if (name == "transformer") return std::make_shared<WholeTransformer>(dropout);
  if (name == "gpt2") return std::make_shared<LibraryGpt2>(dropout);
  if (name == "bert") return std::make_shared<Bert>(dropout);
  if (name == "vit") return std::make_shared<VisionTransformer>(dropout);
  if (drops) return nullptr;
  if (name == "resnet") return std::make_shared<ResidualNet>();
  if (name == "unet") return std::make_shared<UNet>();
  if (name == "attention") return std::make_shared<Attention>();
  if (name == "sequential") return std::make_shared<Chain>();
  if (name == "function") return std::make_shared<WithFunction>();
  return nullptr;
}

}  // namespace tessera::testing
