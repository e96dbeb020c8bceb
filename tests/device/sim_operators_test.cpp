#include <torch/torch.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/sim_device/sim_device.h"

// Operators of many kinds, against the CPU's.

namespace tessera::testing::sim {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Inputs {
  Tensor a, b, index, images, square, mask;
};

struct Case {
  const char* name;
  std::function<Tensor(const Inputs&)> run;
};

// NOLINTBEGIN(cppcoreguidelines-macro-usage)
#define SIM_CASE(...)                                       \
  Case {                                                    \
    #__VA_ARGS__, [](const Inputs& in) -> Tensor {          \
      const auto& [a, b, index, images, square, mask] = in; \
      return __VA_ARGS__;                                   \
    }                                                       \
  }
// NOLINTEND(cppcoreguidelines-macro-usage)

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      SIM_CASE(a.index({index})),
      SIM_CASE(a.index({mask})),
      SIM_CASE(a.clone().index_put_({index}, 2.0)),
      SIM_CASE(a.index_select(0, index)),
      SIM_CASE(a.clone().index_add_(0, index, b.narrow(0, 0, 5))),
      SIM_CASE(a.gather(1, b.argsort(int64_t{1}, false))),
      SIM_CASE(a.clone().scatter_(1, b.argsort(int64_t{1}, false), 1.0)),
      SIM_CASE(a.clone().scatter_add_(1, b.argsort(int64_t{1}, false), b)),
      SIM_CASE(std::get<0>(a.topk(3))),
      SIM_CASE(std::get<1>(a.sort(1))),
      SIM_CASE(a.cumsum(1)),
      SIM_CASE(a.std()),
      SIM_CASE(a.var(0)),
      SIM_CASE(a.norm()),
      SIM_CASE(at::_foreach_norm(Tensors{a, b})[1]),
      SIM_CASE(at::linalg_vector_norm(a)),
      SIM_CASE(a.max()),
      SIM_CASE(std::get<1>(a.max(1))),
      SIM_CASE(a.argmax(1)),
      SIM_CASE(torch::einsum("ij,kj->ik", {a, b})),
      SIM_CASE(torch::conv2d(images, images.narrow(0, 0, 1))),
      SIM_CASE(torch::max_pool2d(images, 2)),
      SIM_CASE(torch::adaptive_avg_pool2d(images, {1, 1})),
      SIM_CASE(torch::batch_norm(images, {}, {}, {}, {}, true, 0.1, 1e-5, false)),
      SIM_CASE(torch::group_norm(images, 3)),
      SIM_CASE(torch::layer_norm(a, {8})),
      SIM_CASE(torch::stack({a, b}).flip({0})),
      SIM_CASE(torch::cat({a, b}, 1).chunk(2, 1)[1].contiguous()),
      SIM_CASE(a.split(2)[1].clone()),
      SIM_CASE(a.unfold(1, 3, 2).contiguous()),
      SIM_CASE(torch::where(a > 0, a, b)),
      SIM_CASE(torch::clamp(a, -1, 1)),
      SIM_CASE(a.masked_fill(mask, 3)),
      SIM_CASE(a.masked_select(mask)),
      SIM_CASE(mask.nonzero()),
      SIM_CASE(std::get<0>(at::_unique2(index))),
      SIM_CASE(torch::isfinite(a).all()),
      SIM_CASE(a.to(torch::kBFloat16).matmul(square.to(torch::kBFloat16)).to(torch::kFloat)),
      SIM_CASE(a.to(torch::kHalf).to(torch::kFloat)),
      SIM_CASE(a.view(torch::kInt)),
      SIM_CASE(torch::silu(a)),
      SIM_CASE(torch::sigmoid(a).log()),
      SIM_CASE(torch::rsqrt(a.abs() + 1)),
      SIM_CASE(a.pow(2).mean({-1}, true)),
      SIM_CASE(torch::log_softmax(a, -1)),
      SIM_CASE(torch::cross_entropy_loss(a, index.new_zeros({6}))),
      SIM_CASE(torch::logsumexp(a, 1)),
      SIM_CASE(torch::one_hot(index, 6)),
      SIM_CASE(torch::tril(square)),
      SIM_CASE(torch::roll(a, 1, 0)),
      SIM_CASE(a.repeat({2, 1})),
      SIM_CASE(a.expand({2, 6, 8}).contiguous()),
      SIM_CASE(torch::outer(a[0], b[0])),
      SIM_CASE(torch::dot(a[0], b[0])),
      SIM_CASE(torch::mv(square, a[0])),
      SIM_CASE(torch::baddbmm(images[0], images[0], images[1])),
      SIM_CASE(at::real(at::polar(a.abs(), b)).clone()),
      SIM_CASE(at::real(at::complex(a, b).conj().clone()).clone()),
      SIM_CASE(at::imag(at::complex(a, b).conj().clone()).clone()),
      SIM_CASE(at::imag(at::complex(a, b).conj()).clone()),
      SIM_CASE(at::imag(at::complex(a, b).conj() * at::complex(b, a)).clone()),
      SIM_CASE(torch::linalg_inv(square)),
      SIM_CASE(torch::bincount(index)),
      SIM_CASE(torch::searchsorted(std::get<0>(a.sort(1)), b)),
      SIM_CASE(torch::cdist(a, b)),
      SIM_CASE(torch::full_like(a, 3)),
      SIM_CASE(torch::linspace(0, 1, 5, a.options())),
      SIM_CASE(torch::eye(3, a.options())),
      SIM_CASE(a.clone().t_()),
      SIM_CASE(a.new_zeros({3})),
      SIM_CASE(at::scaled_dot_product_attention(images, images, images)),
      SIM_CASE(torch::embedding(a, index)),
  };
  return all;
}

TEST(SimOperators, GiveWhatTheCpuGives) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const Inputs on_cpu{torch::randn({6, 8}),       torch::randn({6, 8}), torch::randint(0, 6, {5}),
                      torch::randn({2, 3, 8, 8}), torch::randn({8, 8}), torch::randn({6, 8}) > 0};
  const Inputs on_sim{on_cpu.a.to(device()),      on_cpu.b.to(device()),      on_cpu.index.to(device()),
                      on_cpu.images.to(device()), on_cpu.square.to(device()), on_cpu.mask.to(device())};
  for (const Case& one : cases()) {
    const Tensor expected = one.run(on_cpu);
    try {
      const Tensor found = one.run(on_sim);
      EXPECT_EQ(found.device(), device()) << one.name;
      EXPECT_TRUE(torch::allclose(found.cpu().to(torch::kDouble), expected.to(torch::kDouble), 1e-5, 1e-6)) << one.name;
    } catch (const c10::Error& error) {
      ADD_FAILURE() << one.name << ": " << error.what_without_backtrace();
    }
  }
}

TEST(SimOperators, HaveTheGradientsOfTheCpu) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  auto layer = torch::nn::TransformerEncoderLayer(torch::nn::TransformerEncoderLayerOptions(8, 2).dropout(0.0));
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3));
  torch::nn::Embedding words(10, 8);
  torch::nn::BatchNorm2d norm(4);
  torch::nn::Sequential holder;
  for (const auto& one :
       std::vector<std::shared_ptr<torch::nn::Module>>{layer.ptr(), convolution.ptr(), words.ptr(), norm.ptr()}) {
    holder->register_module("m" + std::to_string(holder->children().size()), one);
  }
  const Tensor sequence = torch::randn({4, 3, 8});
  const Tensor images = torch::randn({2, 3, 8, 8});
  const Tensor ids = torch::randint(0, 10, {4, 3});
  const auto gradients = [&](const c10::Device& on) {
    holder->to(on);
    holder->zero_grad();
    (layer->forward(sequence.to(on) + words->forward(ids.to(on))).square().mean() +
     norm->forward(convolution->forward(images.to(on))).pow(3).sum())
        .backward();
    Tensors found;
    for (const Tensor& one : holder->parameters()) found.push_back(one.grad().cpu());
    return found;
  };
  const Tensors expected = gradients(at::kCPU);
  const Tensors found = gradients(device());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double largest = expected[i].abs().max().item<double>();
    EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), 1e-5 * largest) << i;
  }
}

/// Kernels of backends write to it on threads that are not in that mode.
TEST(SimOperators, HaveOrdinaryTensorsInInferenceMode) {
  const c10::InferenceMode guard;
  const Tensor values = torch::zeros({2}, device());
  EXPECT_TRUE(values.is_inference());
  EXPECT_FALSE(on_host(values).is_inference());
}

/// As DDP meets them: made dense where they arrive, and added to dense ones of before.
TEST(SimOperators, HaveTheSparseGradientsOfTheCpu) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(10, 8).padding_idx(3).sparse(true));
  {
    // Sums of these have no roundings, so their order does not matter.
    const torch::NoGradGuard no_grad;
    words->weight.copy_(torch::randint(-8, 8, {10, 8}));
  }
  const Tensor ids = torch::randint(0, 10, {4, 3});
  const auto gradient = [&](const c10::Device& on) {
    words->to(on);
    // Twice in a graph: the gradients of both are added as they are.
    const auto squares = [&](const Tensor& some) { return words->forward(some.to(on)).square().sum(); };
    const auto backward = [&] { (squares(ids) + squares(ids.t())).backward(); };
    words->weight.mutable_grad() = Tensor();
    backward();
    EXPECT_TRUE(words->weight.grad().is_sparse());
    words->weight.mutable_grad() = words->weight.grad().to_dense();
    backward();
    return words->weight.grad().cpu();
  };
  const Tensor expected = gradient(at::kCPU);
  EXPECT_TRUE(at::equal(gradient(device()), expected));
}

}  // namespace
}  // namespace tessera::testing::sim
