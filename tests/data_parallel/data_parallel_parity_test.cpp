// Replicas train as one model on the whole batch does.
#include <tessera/data_parallel/data_parallel.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include "data_parallel/replica_models.h"

namespace tessera {
namespace {

using testing::make_model;
using testing::MlpImpl;
using testing::random_values;

struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(conv(x)).mean({2, 3})); }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear head{nullptr};
};

struct RecurrentImpl : torch::nn::Cloneable<RecurrentImpl> {
  RecurrentImpl() { reset(); }
  void reset() override {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 7).batch_first(true)));
    head = register_module("head", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }

  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

// The same layer twice, in a way that clone() does not know.
struct SharedImpl : torch::nn::Cloneable<SharedImpl> {
  SharedImpl() {
    reset();
    second->weight = first->weight;
    second->unregister_again(first->weight);
  }
  struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
    LayerImpl() { reset(); }
    void reset() override { weight = register_parameter("weight", torch::zeros({6, 6})); }
    void unregister_again(const at::Tensor& tensor) { parameters_["weight"] = tensor; }
    at::Tensor weight;
  };
  TORCH_MODULE_IMPL(Layer, LayerImpl);
  void reset() override {
    first = register_module("first", Layer());
    second = register_module("second", Layer());
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::tanh(x.mm(first->weight)).mm(second->weight).narrow(1, 0, 3);
  }

  Layer first{nullptr};
  Layer second{nullptr};
};

template <class Model, class Forward>
std::vector<at::Tensor> train(Model& model, const Forward& forward, at::IntArrayRef shape) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (std::uint64_t step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor output = forward(random_values(shape, 1000 + step));
    at::mse_loss(output, random_values(output.sizes(), 2000 + step)).backward();
    optimizer.step();
  }
  return model.parameters();
}

template <class Model>
void expect_parity(at::IntArrayRef shape) {
  const auto single = make_model<Model>();
  const auto expected = train(*single, [&](const at::Tensor& x) { return single->forward(x); }, shape);
  for (const int num_replicas : {1, 2, 4}) {
    const auto model = make_model<Model>();
    const DataParallel<Model> parallel(model, DataParallelOptions().num_replicas(num_replicas));
    const auto found = train(*model, [&](const at::Tensor& x) { return parallel.forward(x); }, shape);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE((found[i] - expected[i]).abs().max().template item<double>(), 1e-10) << num_replicas << ' ' << i;
    }
    const auto moved = (found[0] - make_model<Model>()->parameters()[0]).abs().max().template item<double>();
    EXPECT_GT(moved, 1e-3) << "it has trained";
  }
}

TEST(DataParallelParity, OfAnMlp) { expect_parity<MlpImpl>({8, 6}); }
TEST(DataParallelParity, OfAnMlpWithUnevenBatches) { expect_parity<MlpImpl>({7, 6}); }
TEST(DataParallelParity, OfAnMlpWithFewerRowsThanReplicas) { expect_parity<MlpImpl>({3, 6}); }
TEST(DataParallelParity, OfAConvolution) { expect_parity<ConvNetImpl>({6, 2, 5, 5}); }
TEST(DataParallelParity, OfAnLstm) { expect_parity<RecurrentImpl>({6, 4, 5}); }
TEST(DataParallelParity, OfLayersThatShareTheirWeight) { expect_parity<SharedImpl>({8, 6}); }

TEST(DataParallelParity, OfInputGradients) {
  const auto model = make_model<MlpImpl>();
  const at::Tensor expected_for = random_values({5, 6}, 1).requires_grad_();
  model->forward(expected_for).square().sum().backward();
  for (const int num_replicas : {2, 4}) {
    const DataParallel<MlpImpl> parallel(model, DataParallelOptions().num_replicas(num_replicas));
    const at::Tensor input = random_values({5, 6}, 1).requires_grad_();
    // Not a leaf: the gradient goes on through the caller's graph.
    parallel.forward(input * 1).square().sum().backward();
    EXPECT_TRUE(at::allclose(input.grad(), expected_for.grad(), 1e-12, 1e-12));
  }
}

TEST(DataParallelParity, OfTwoBackwardsThatAddUp) {
  const auto single = make_model<MlpImpl>();
  const auto model = make_model<MlpImpl>();
  const DataParallel<MlpImpl> parallel(model);
  std::vector<at::Tensor> losses;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    single->forward(random_values({6, 6}, seed)).square().sum().backward();
    losses.push_back(parallel.forward(random_values({6, 6}, seed)).square().sum());
  }
  // Both forwards before both backwards: the first graph must not suffer from the second forward.
  for (const at::Tensor& loss : losses) loss.backward();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), single->parameters()[i].grad(), 1e-12, 1e-12)) << i;
  }
}

}  // namespace
}  // namespace tessera
