#include "parity/models.h"

#include <tessera/recompute/recompute.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "parity/gpt_block.h"
#include "parity/more_models.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;
namespace functional = torch::nn::functional;

constexpr int kBatch = 4;

struct Gpt : ParityModel {
  Gpt()
      : tokens(register_module("tokens", nn::Embedding(kVocabulary, GptBlock::kWidth))),
        places(register_module("places", nn::Embedding(kLength, GptBlock::kWidth))),
        first(register_module("first", std::make_shared<GptBlock>())),
        second(register_module("second", std::make_shared<GptBlock>())),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({GptBlock::kWidth})))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = tokens(input) + places(torch::arange(kLength, input.device())).unsqueeze(1);
    // The head is the embedding: one parameter in two places.
    return torch::matmul(norm(run_blocks(x)), tokens->weight.t());
  }
  virtual torch::Tensor run_blocks(const torch::Tensor& x) { return second->forward(first->forward(x)); }
  torch::Tensor input(int step, int part) const override {
    return classes(step, part, kLength * kBatch, kVocabulary).view({kLength, kBatch});
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output.reshape({-1, kVocabulary}),
                                     classes(step + 1, part, kLength * kBatch, kVocabulary).to(output.device()));
  }

  static constexpr int kVocabulary = 11;
  static constexpr int kLength = 5;
  nn::Embedding tokens;
  nn::Embedding places;
  std::shared_ptr<GptBlock> first;
  std::shared_ptr<GptBlock> second;
  nn::LayerNorm norm;
};

struct RecomputedGpt : Gpt {
  torch::Tensor run_blocks(const torch::Tensor& x) override {
    const auto run_first = [block = first](const torch::Tensor& y) { return block->forward(y); };
    const auto run_both = [run_first, block = second](const torch::Tensor& y) {
      return block->forward(recompute(run_first, y));
    };
    return recompute(run_both, x);
  }
};

struct Conv : ParityModel {
  Conv()
      // No bias before BatchNorm: its gradient is rounding alone, which AdamW makes as large as any other.
      : first(register_module("first", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)))),
        first_norm(register_module("first_norm", nn::BatchNorm2d(4))),
        second(register_module("second", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)))),
        second_norm(register_module("second_norm", nn::BatchNorm2d(4))),
        head(register_module("head", nn::Linear(4, 3))) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = torch::relu(first_norm(first(input)));
    return head(torch::tanh(second_norm(second(x))).mean({2, 3}));
  }
  torch::Tensor input(int step, int part) const override {
    return formula({kBatch, 2, 6, 6}, 3 * step + part, head->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return functional::cross_entropy(output, classes(step, part, kBatch, 3).to(output.device()));
  }

  nn::Conv2d first;
  nn::BatchNorm2d first_norm;
  nn::Conv2d second;
  nn::BatchNorm2d second_norm;
  nn::Linear head;
};

struct Lstm : ParityModel {
  Lstm()
      : cells(register_module("cells", nn::LSTM(nn::LSTMOptions(3, 6).num_layers(2).batch_first(true)))),
        head(register_module("head", nn::Linear(6, 2))) {}

  torch::Tensor forward(const torch::Tensor& input) override { return head(std::get<0>(cells(input)).select(1, -1)); }
  torch::Tensor input(int step, int part) const override {
    return formula({kBatch, 5, 3}, 2 * step + part, head->weight.scalar_type());
  }
  torch::Tensor loss(const torch::Tensor& output, int step, int part) const override {
    return (output - formula({kBatch, 2}, step + 2 * part, output.scalar_type()).to(output.device())).square().mean();
  }

  nn::LSTM cells;
  nn::Linear head;
};

}  // namespace

torch::Tensor formula(at::IntArrayRef shape, double phase, torch::Dtype dtype) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kDouble) * 0.37 + 1.7 * phase).view(shape).to(dtype);
}

void fill_by_formula(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model.parameters()) {
    const auto values = formula(parameter.sizes(), ++phase, parameter.scalar_type());
    parameter.copy_(parameter.dim() > 1 ? values * 0.3 : 1 + 0.1 * values);
  }
}

std::shared_ptr<ParityModel> make_parity_model(const std::string& name, torch::Dtype dtype) {
  std::shared_ptr<ParityModel> model;
  if (name == "gpt") model = std::make_shared<Gpt>();
  if (name == "recomputed gpt") model = std::make_shared<RecomputedGpt>();
  if (name == "conv") model = std::make_shared<Conv>();
  if (name == "lstm") model = std::make_shared<Lstm>();
  if (!model) model = make_further_model(name);
  if (!model) throw std::runtime_error("there is no model " + name);
  model->to(dtype);
  fill_by_formula(*model);
  return model;
}

std::shared_ptr<ParityModel> make_random_parity_model(const std::string& name, torch::Dtype dtype) {
  auto model = make_parity_model(name, dtype);
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);  // ranks that are threads share LibTorch's
  for (auto& item : model->named_parameters()) {
    torch::Tensor& parameter = item.value();
    const auto values = torch::empty(parameter.sizes(), torch::kDouble).normal_(0, 1, generator);
    const bool is_factor = parameter.dim() == 1 && !item.key().ends_with("bias");  // of a norm
    const double size = parameter.dim() > 1 ? std::sqrt(1.0 * parameter.size(0) / parameter.numel()) : 1;
    parameter.copy_(parameter.dim() > 1 ? values * std::min(0.3, size) : is_factor ? 1 + 0.1 * values : 0.1 * values);
  }
  return model;
}

}  // namespace tessera::testing
