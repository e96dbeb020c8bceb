#include "tensor_parallel/random_trees/more_leaves.h"

#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/torch.h>

#include <iterator>
#include <tuple>

namespace tessera::testing {
namespace {

using at::Tensor;
namespace functional = torch::nn::functional;

NodePtr named(const std::string& kind) { return std::make_shared<Node>(kind); }

// ---- layers whose cuts meet -----------------------------------------------------------------------------------------

NodePtr encoder_layer(std::int64_t num_heads, bool uses_relu) {
  const auto node = named("TransformerEncoderLayer of " + std::to_string(num_heads) + " heads");
  auto options = torch::nn::TransformerEncoderLayerOptions(kWidth, num_heads).dim_feedforward(10).dropout(0);
  if (uses_relu) {
    options.activation(torch::kReLU);
  } else {
    options.activation(torch::kGELU);
  }
  const auto layer = node->register_module("layer", torch::nn::TransformerEncoderLayer(options));
  node->runs([layer](const Tensor& x, const Batch&) { return layer->forward(x.transpose(0, 1)).transpose(0, 1); });
  return node;
}

/// LibTorch's kernel has no gradients of gradients: they are what a gradient of the batch is for.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal, bool twice_differentiable) {
  if (!twice_differentiable) return at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0.0, is_causal);
  return q.matmul(k.transpose(-2, -1)).softmax(-1).matmul(v);
}

NodePtr hand_written_attention(std::int64_t num_heads, bool is_causal) {
  const auto node = named("attention by hand, of " + std::to_string(num_heads) + " heads");
  const auto qkv = node->register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  const auto out = node->register_module("out", torch::nn::Linear(kWidth, kWidth));
  node->runs([=](const Tensor& x, const Batch& batch) {
    const auto parts = qkv->forward(x).chunk(3, -1);
    const auto by_head = [&](std::size_t i) {
      return parts[i].view({x.size(0), x.size(1), num_heads, kWidth / num_heads}).transpose(1, 2);
    };
    const Tensor mixed = attend(by_head(0), by_head(1), by_head(2), is_causal, batch.x.requires_grad());
    return x + out->forward(mixed.transpose(1, 2).reshape(x.sizes()));
  });
  return node;
}

NodePtr activated_in_place() {
  const auto node = named("Linear, ReLU in place, Linear");
  const auto up = node->register_module("up", torch::nn::Linear(kWidth, 9));
  const auto activation = node->register_module("activation", torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  const auto down = node->register_module("down", torch::nn::Linear(9, kWidth));
  node->runs([=](const Tensor& x, const Batch&) {
    return down->forward(activation->forward(up->forward(x).add_(0.1))).tanh_();
  });
  return node;
}

NodePtr gated(std::int64_t width) {
  const auto node = named("gated Linear of " + std::to_string(width));
  const auto up = node->register_module("up", torch::nn::Linear(kWidth, 2 * width));
  const auto down = node->register_module("down", torch::nn::Linear(width, kWidth));
  node->runs([=](const Tensor& x, const Batch&) {
    const auto halves = up->forward(x).chunk(2, -1);
    return down->forward(torch::silu(halves[0]) * halves[1]);
  });
  return node;
}

NodePtr pooled_image() {
  const auto node = named("Conv2d, BatchNorm2d, pool, Conv2d");
  node->set_changes_buffers();
  // Without a bias, whose gradient would be rounding alone: AdamW makes much of it.
  const auto options = torch::nn::Conv2dOptions(1, 5, 3).padding(1).bias(false);
  const auto first = node->register_module("first", torch::nn::Conv2d(options));
  const auto norm = node->register_module("norm", torch::nn::BatchNorm2d(5));
  const auto second = node->register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 1, 3).padding(1)));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor image = norm->forward(first->forward(x.unsqueeze(1))).relu_();
    return second->forward(torch::max_pool2d(image, 3, 1, 1)).squeeze(1);
  });
  return node;
}

NodePtr grouped_channels(std::int64_t groups) {
  const auto node = named("Conv1d of " + std::to_string(groups) + " groups, Conv1d");
  const auto up =
      node->register_module("up", torch::nn::Conv1d(torch::nn::Conv1dOptions(kWidth, 12, 1).groups(groups)));
  const auto down = node->register_module("down", torch::nn::Conv1d(torch::nn::Conv1dOptions(12, kWidth, 1)));
  node->runs([=](const Tensor& x, const Batch&) {
    Tensor hidden = up->forward(x.transpose(1, 2));
    return down->forward(torch::elu_(hidden)).transpose(1, 2);
  });
  return node;
}

NodePtr transposed_convolution() {
  const auto node = named("ConvTranspose1d");
  const auto options = torch::nn::ConvTranspose1dOptions(kWidth, kWidth, 3).padding(1);
  const auto layer = node->register_module("layer", torch::nn::ConvTranspose1d(options));
  node->runs([=](const Tensor& x, const Batch&) { return layer->forward(x.transpose(1, 2)).transpose(1, 2); });
  return node;
}

NodePtr group_norm(std::int64_t groups) {
  const auto node = named("Linear, GroupNorm of " + std::to_string(groups) + " groups");
  const auto linear = node->register_module("linear", torch::nn::Linear(kWidth, kWidth));
  const auto norm = node->register_module("norm", torch::nn::GroupNorm(groups, kWidth));
  node->runs(
      [=](const Tensor& x, const Batch&) { return norm->forward(linear->forward(x).transpose(1, 2)).transpose(1, 2); });
  return node;
}

NodePtr tied_words() {
  const auto node = named("Embedding and logits of one table");
  const auto table = node->register_module("table", torch::nn::Embedding(kNumWords, kWidth));
  node->runs([=](const Tensor& x, const Batch& batch) {
    const Tensor logits = torch::linear(x + table->forward(batch.ids), table->weight);
    const Tensor loss = torch::cross_entropy_loss(logits.flatten(0, 1), batch.ids.flatten());
    return x * (0.5 + 0.1 * loss) + logits.softmax(-1).matmul(table->weight);
  });
  return node;
}

NodePtr bag_of_words() {
  const auto node = named("EmbeddingBag");
  const auto bag = node->register_module("bag", torch::nn::EmbeddingBag(kNumWords, kWidth));
  node->runs([=](const Tensor& x, const Batch& batch) { return x + bag->forward(batch.ids).unsqueeze(1); });
  return node;
}

NodePtr two_lstm_layers() {
  const auto node = named("LSTM of two layers");
  const auto layer = node->register_module("layer", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, 6).num_layers(2)));
  node->runs(
      [=](const Tensor& x, const Batch&) { return std::get<0>(layer->forward(x.transpose(0, 1))).transpose(0, 1); });
  return node;
}

NodePtr cell_by_cell() {
  const auto node = named("GRUCell");
  const auto cell = node->register_module("cell", torch::nn::GRUCell(kWidth, kWidth));
  node->runs([=](const Tensor& x, const Batch&) {
    Tensor state = torch::zeros({x.size(0), kWidth}, x.options().requires_grad(false));
    std::vector<Tensor> states;
    for (std::int64_t t = 0; t < x.size(1); ++t) states.push_back(state = cell->forward(x.select(1, t), state));
    return torch::stack(states, 1);
  });
  return node;
}

NodePtr bilinear() {
  const auto node = named("Bilinear");
  const auto layer = node->register_module("layer", torch::nn::Bilinear(kWidth, kWidth, kWidth));
  node->runs([=](const Tensor& x, const Batch&) { return layer->forward(x, x.sigmoid()).tanh(); });
  return node;
}

NodePtr slopes() {
  const auto node = named("PReLU");
  const auto layer = node->register_module("layer", torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(kWidth)));
  node->runs([=](const Tensor& x, const Batch&) { return layer->forward(x.transpose(1, 2)).transpose(1, 2); });
  return node;
}

// ---- operators that cuts pass through -------------------------------------------------------------------------------

NodePtr without_rules() {
  const auto node = named("operators without a rule");
  const auto weight = node->register_parameter("weight", torch::zeros({kWidth, kWidth}));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor y = x.matmul(weight);
    return y.roll(1, -1) + y.flip({-1}).cumsum(-1).sin() + std::get<0>(y.sort(-1)) * weight.diagonal() +
           weight.tril().sum();
  });
  return node;
}

NodePtr normalised_weight() {
  const auto node = named("a weight divided by its norm");
  const auto weight = node->register_parameter("weight", torch::zeros({kWidth, kWidth}));
  const auto gain = node->register_parameter("gain", torch::zeros({kWidth, 1}));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor rows = weight / weight.norm(2, {1}, true) * gain;
    return torch::linear(x, rows) + functional::normalize(torch::linear(x, weight)) / (1 + weight.square().mean());
  });
  return node;
}

NodePtr statistics() {
  const auto node = named("statistics of a weight");
  const auto weight = node->register_parameter("weight", torch::zeros({kWidth, kWidth}));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor y = torch::linear(x, weight.softmax(1));
    return y + weight.mean(0) + weight.logsumexp(1) * weight.amax() +
           y.var(at::IntArrayRef{-1}, /*unbiased=*/true, /*keepdim=*/true) + weight.norm().tanh() +
           std::get<0>(y.max(-1, true)) * weight.sum(1);
  });
  return node;
}

NodePtr positions() {
  const auto node = named("a table of positions");
  const auto table = node->register_parameter("table", torch::zeros({kNumWords + 1, kWidth}));
  node->runs([=](const Tensor& x, const Batch& batch) {
    const Tensor chosen = table.index({batch.ids}) + table.index_select(0, batch.ids.flatten()).view_as(x).tanh();
    return x + table.slice(0, 0, x.size(1)) + chosen * table.narrow(0, 2, 3).sigmoid();
  });
  return node;
}

NodePtr experts() {
  const auto node = named("three experts");
  const auto gate = node->register_module("gate", torch::nn::Linear(kWidth, 3));
  const auto up = node->register_parameter("up", torch::zeros({3, kWidth, 4}));
  const auto down = node->register_parameter("down", torch::zeros({3, 4, kWidth}));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor scores = gate->forward(x).softmax(-1);
    const Tensor kept = torch::where(scores > 0.3, scores, scores * 0.1);
    const Tensor hidden = torch::einsum("bti,eio->ebto", {x, up}).relu_();
    return (hidden.matmul(down.unsqueeze(1)) * kept.permute({2, 0, 1}).unsqueeze(-1)).sum(0);
  });
  return node;
}

NodePtr written_views() {
  const auto node = named("views that are written to");
  const auto layer = node->register_module("layer", torch::nn::Linear(kWidth, kWidth));
  const auto factor = node->register_parameter("factor", torch::zeros({kWidth}));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor y = layer->forward(x);
    Tensor z = torch::zeros(x.sizes(), x.options().requires_grad(false)).add_(y);
    z.select(1, 0).mul_(factor).add_(y.select(1, 1));
    z.narrow(2, 1, 3).sub_(x.narrow(2, 0, 3));
    return z.add_(factor);
  });
  return node;
}

NodePtr hooked() {
  const auto node = named("a hook on a gradient");
  const auto layer = node->register_module("layer", torch::nn::Linear(kWidth, kWidth));
  node->runs([=](const Tensor& x, const Batch&) {
    const Tensor y = layer->forward(x);
    if (y.requires_grad()) y.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    return y.tanh() + x;
  });
  return node;
}

}  // namespace

NodePtr another_leaf(Dice& dice) {
  using Make = NodePtr (*)(Dice&);
  static constexpr Make kMakers[] = {
      [](Dice& d) { return encoder_layer(2 + d.below(2), d.chance(50)); },
      [](Dice& d) { return hand_written_attention(1 + d.below(3), d.chance(50)); },
      [](Dice&) { return activated_in_place(); },
      [](Dice& d) { return gated(5 + d.below(3)); },
      [](Dice&) { return pooled_image(); },
      [](Dice& d) { return grouped_channels(1 + d.below(3)); },
      [](Dice&) { return transposed_convolution(); },
      [](Dice& d) { return group_norm(1 + d.below(3)); },
      [](Dice&) { return tied_words(); },
      [](Dice&) { return bag_of_words(); },
      [](Dice&) { return two_lstm_layers(); },
      [](Dice&) { return cell_by_cell(); },
      [](Dice&) { return bilinear(); },
      [](Dice&) { return slopes(); },
      [](Dice&) { return without_rules(); },
      [](Dice&) { return normalised_weight(); },
      [](Dice&) { return statistics(); },
      [](Dice&) { return positions(); },
      [](Dice&) { return experts(); },
      [](Dice&) { return written_views(); },
      [](Dice&) { return hooked(); },
  };
  return kMakers[dice.below(std::ssize(kMakers))](dice);
}

}  // namespace tessera::testing
