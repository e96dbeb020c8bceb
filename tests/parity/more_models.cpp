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
  WholeTransformer()
      : layers(register_module(
            "layers",
            nn::Transformer(nn::TransformerOptions(kWidth, 2, 1, 1).dim_feedforward(2 * kWidth).dropout(0)))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return layers->forward(input, input.narrow(0, 0, 2)); }
  torch::Tensor input(int step, int part) const override {
    return formula({3, kSmallBatch, kWidth}, 2 * step + part, parameters().front().scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output - formula({2, kSmallBatch, kWidth}, step + 3 * part, output.scalar_type())).square().mean();
  }

  static constexpr int kWidth = 8;
  nn::Transformer layers;
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
    return (output - formula({3, kSmallBatch, 8}, step + 3 * part, output.scalar_type())).square().mean();
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
    return functional::cross_entropy(output, classes(step, part, kSmallBatch, 3));
  }

  nn::Sequential layers;
};

/// The library's own.
struct LibraryGpt2 : ParityModel {
  LibraryGpt2()
      : gpt2(register_module("gpt2", models::Gpt2(models::Gpt2Config()
                                                      .vocab_size(kVocabulary)
                                                      .context(kLength)
                                                      .width(8)
                                                      .num_layers(2)
                                                      .num_heads(2)
                                                      .dropout(0)))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return gpt2->forward(input); }
  torch::Tensor input(int step, int part) const override {
    return classes(step, part, kLength * kSmallBatch, kVocabulary).view({kSmallBatch, kLength});
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output.reshape({-1, kVocabulary}),
                                     classes(step + 1, part, kLength * kSmallBatch, kVocabulary));
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
    return (output - formula({kSmallBatch, 2}, step + 2 * part, output.scalar_type())).square().mean();
  }

  nn::Linear first;
  torch::Tensor second;
  nn::Linear third;
};

}  // namespace

torch::Tensor classes(int step, int part, int count, int num_classes) {
  return (torch::arange(count, torch::kLong) * 7 + 5 * step + 3 * part) % num_classes;
}

std::shared_ptr<ParityModel> make_further_model(const std::string& name) {
  if (name == "transformer") return std::make_shared<WholeTransformer>();
  if (name == "attention") return std::make_shared<Attention>();
  if (name == "sequential") return std::make_shared<Chain>();
  if (name == "gpt2") return std::make_shared<LibraryGpt2>();
  if (name == "function") return std::make_shared<WithFunction>();
  return nullptr;
}

}  // namespace tessera::testing
