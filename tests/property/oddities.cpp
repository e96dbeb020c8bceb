#include "property/oddities.h"

#include <torch/torch.h>

#include "property/batches.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr std::int64_t kTimesMore = 4;

Node::Run run_of_embedding(Node& node, const torch::nn::EmbeddingOptions& options) {
  auto embedding = node.register_module("words", torch::nn::Embedding(options));
  embedding->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  embedding->weight.copy_(wave(0.7, embedding->weight.sizes()));
  return [embedding](const Tensor& x, const Batch& batch) mutable {
    // Ranks have other words than their neighbours, as a rule.
    const Tensor shift = (batch.x.detach().abs().sum() * 1000).to(torch::kLong).remainder(kTimesMore);
    return x + embedding->forward(batch.ids * kTimesMore + shift);
  };
}

Node::Run run_of(Node& node, const std::string& oddity, bool dense) {
  using torch::nn::EmbeddingOptions;
  if (oddity == "max_norm")
    return run_of_embedding(node, EmbeddingOptions(kTimesMore * kNumWords, kWidth).max_norm(0.5));
  if (oddity == "sparse")
    return run_of_embedding(node, EmbeddingOptions(kTimesMore * kNumWords, kWidth).sparse(!dense));
  if (oddity == "complex") {
    const Tensor turn = node.register_parameter("turn", at::complex(wave(0.2, {kWidth}), wave(0.9, {kWidth})));
    return [turn](const Tensor& x, const Batch&) { return x + at::real(turn * x); };
  }
  Tensor values = wave(0.4, {kWidth, kWidth}) * 0.3;
  if (oddity == "columns") values = values.t();
  if (oddity == "gaps") values = at::cat({values, values, values}, 1).narrow(1, 1, kWidth);
  const Tensor weight = node.register_parameter("weight", values);
  if (oddity == "columns" || oddity == "gaps") {
    return [weight](const Tensor& x, const Batch&) { return x + at::matmul(x, weight); };
  }
  if (oddity == "aliases") {
    const Tensor again = node.register_parameter("again", weight.data());
    return [weight, again](const Tensor& x, const Batch&) { return x + at::matmul(at::matmul(x, weight), again); };
  }
  // What a module computes once, when it is built.
  const Tensor view = weight.detach().t();
  return [weight, view](const Tensor& x, const Batch&) { return x + at::matmul(at::matmul(x, weight), view); };
}

}  // namespace

const std::vector<std::string>& oddities() {
  static const std::vector<std::string> all{"max_norm", "sparse", "complex", "aliases", "view", "columns", "gaps"};
  return all;
}

NodePtr with_oddity(const NodePtr& model, const std::string& oddity, bool dense) {
  if (oddity.empty()) return model;
  auto root = std::make_shared<Node>("a model with " + oddity);
  root->adopt(model);
  const auto odd = std::make_shared<Node>(oddity);
  odd->runs(run_of(*odd, oddity, dense));
  root->adopt(odd);
  root->runs([inner = model.get(), last = odd.get()](const Tensor& x, const Batch& batch) {
    return last->forward(inner->forward(x, batch), batch);
  });
  return root;
}

}  // namespace tessera::testing
