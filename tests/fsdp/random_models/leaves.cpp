#include "fsdp/random_models/leaves.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/torch.h>

#include <tuple>

namespace tessera::testing {
namespace {

using at::Tensor;

NodePtr with(const std::string& kind) { return std::make_shared<Node>(kind); }
Tensor matrix() { return torch::zeros({kWidth, kWidth}); }

// ---- layers of LibTorch ---------------------------------------------------------------------------------------------

NodePtr two_linear(bool bias) {
  const auto node = with("two Linear");
  const auto options = [bias](std::int64_t in, std::int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(bias);
  };
  const auto up = node->register_module("up", torch::nn::Linear(options(kWidth, 11)));
  const auto down = node->register_module("down", torch::nn::Linear(options(11, kWidth)));
  node->runs([up, down](const Tensor& x, const Batch&) { return down->forward(torch::gelu(up->forward(x))); });
  return node;
}

NodePtr conv1d(std::int64_t groups) {
  const auto node = with("Conv1d of " + std::to_string(groups) + " groups");
  const auto options = torch::nn::Conv1dOptions(kWidth, kWidth, 3).padding(1).groups(groups);
  const auto layer = node->register_module("layer", torch::nn::Conv1d(options));
  node->runs([layer](const Tensor& x, const Batch&) { return layer->forward(x.transpose(1, 2)).transpose(1, 2); });
  return node;
}

NodePtr conv2d() {
  const auto node = with("Conv2d");
  const auto layer = node->register_module("layer", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
  node->runs([layer](const Tensor& x, const Batch&) { return layer->forward(x.unsqueeze(1)).tanh().mean(1); });
  return node;
}

NodePtr layer_norm() {
  const auto node = with("LayerNorm");
  const auto layer = node->register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  node->runs([layer](const Tensor& x, const Batch&) { return layer->forward(x); });
  return node;
}

NodePtr batch_norm(bool fixed) {
  const auto node = with(fixed ? "BatchNorm1d that evaluates" : "BatchNorm1d that trains");
  if (!fixed) node->set_changes_buffers();
  const auto layer = node->register_module("layer", torch::nn::BatchNorm1d(kWidth));
  node->runs([layer, fixed](const Tensor& x, const Batch&) {
    if (fixed) layer->eval();
    return layer->forward(x.flatten(0, 1)).view_as(x);
  });
  return node;
}

NodePtr embedding() {
  const auto node = with("Embedding");
  const auto layer = node->register_module("layer", torch::nn::Embedding(kNumWords, kWidth));
  node->runs([layer](const Tensor& x, const Batch& batch) { return x + layer->forward(batch.ids); });
  return node;
}

NodePtr gru() {
  const auto node = with("GRU");
  const auto layer =
      node->register_module("layer", torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)));
  node->runs([layer](const Tensor& x, const Batch&) { return std::get<0>(layer->forward(x)); });
  return node;
}

NodePtr lstm() {
  const auto node = with("LSTM");
  const auto options = torch::nn::LSTMOptions(kWidth, kWidth / 2).batch_first(true).bidirectional(true);
  const auto layer = node->register_module("layer", torch::nn::LSTM(options));
  node->runs([layer](const Tensor& x, const Batch&) { return std::get<0>(layer->forward(x)); });
  return node;
}

NodePtr attention() {
  const auto node = with("MultiheadAttention");
  const auto layer = node->register_module("layer", torch::nn::MultiheadAttention(kWidth, 2));
  node->runs([layer](const Tensor& x, const Batch&) {
    const Tensor rows = x.transpose(0, 1);
    return std::get<0>(layer->forward(rows, rows, rows)).transpose(0, 1);
  });
  return node;
}

// ---- parameters that operators use ----------------------------------------------------------------------------------

NodePtr scale_and_shift() {
  const auto node = with("scale and shift");
  const auto scale = node->register_parameter("scale", torch::zeros({kWidth}));
  const auto shift = node->register_parameter("shift", torch::zeros({1, 1, kWidth}));
  const auto gain = node->register_parameter("gain", torch::zeros({}));
  node->runs([=](const Tensor& x, const Batch&) { return torch::addcmul(shift, x, scale.sigmoid()) * gain.exp(); });
  return node;
}

NodePtr matrix_used_twice() {
  const auto node = with("a matrix used twice");
  const auto weight = node->register_parameter("weight", matrix());
  node->runs([=](const Tensor& x, const Batch&) { return x.matmul(weight).tanh().matmul(weight.t()); });
  return node;
}

NodePtr one_of_a_stack(std::int64_t index) {
  const auto node = with("matrix " + std::to_string(index) + " of a stack");
  const auto stack = node->register_parameter("stack", torch::zeros({3, kWidth, kWidth}));
  node->runs([=](const Tensor& x, const Batch&) { return torch::einsum("bti,oi->bto", {x, stack.select(0, index)}); });
  return node;
}

NodePtr joined_halves() {
  const auto node = with("a matrix in two halves");
  const auto upper = node->register_parameter("upper", torch::zeros({kWidth / 2, kWidth}));
  const auto lower = node->register_parameter("lower", torch::zeros({kWidth / 2, kWidth}));
  node->runs([=](const Tensor& x, const Batch&) { return torch::linear(x, torch::cat({upper, lower})); });
  return node;
}

NodePtr in_place() {
  const auto node = with("in place");
  const auto factor = node->register_parameter("factor", torch::zeros({kWidth}));
  node->runs([=](const Tensor& x, const Batch&) { return x.clone().mul_(factor).add_(x); });
  return node;
}

/// x W, with a backward of its own.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return x.matmul(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& gradient = gradients.front();
    return {gradient.matmul(saved[1].t()), saved[0].flatten(0, 1).t().matmul(gradient.flatten(0, 1))};
  }
};

NodePtr function_of_its_own() {
  const auto node = with("autograd::Function");
  const auto weight = node->register_parameter("weight", matrix());
  node->runs([=](const Tensor& x, const Batch&) { return Product::apply(x, weight); });
  return node;
}

}  // namespace

NodePtr linear_leaf() {
  const auto node = with("Linear");
  const auto layer = node->register_module("layer", torch::nn::Linear(kWidth, kWidth));
  node->runs([layer](const Tensor& x, const Batch&) { return layer->forward(x).tanh(); });
  return node;
}

NodePtr tied_leaf(const Tensor& matrix) {
  const auto node = with("a matrix of another node");
  const auto weight = node->register_parameter("weight", matrix, matrix.requires_grad());
  node->runs([=](const Tensor& x, const Batch&) { return torch::linear(x, weight).tanh(); });
  return node;
}

NodePtr random_leaf(Dice& dice) {
  switch (dice.below(16)) {
    case 0:
      return two_linear(dice.chance(50));
    case 1:
      return conv1d(dice.chance(50) ? 1 : kWidth);
    case 2:
      return conv2d();
    case 3:
      return layer_norm();
    case 4:
      return batch_norm(dice.chance(50));
    case 5:
      return embedding();
    case 6:
      return gru();
    case 7:
      return lstm();
    case 8:
      return attention();
    case 9:
      return scale_and_shift();
    case 10:
      return matrix_used_twice();
    case 11:
      return one_of_a_stack(dice.below(3));
    case 12:
      return joined_halves();
    case 13:
      return in_place();
    case 14:
      return function_of_its_own();
    default:
      return linear_leaf();
  }
}

}  // namespace tessera::testing
