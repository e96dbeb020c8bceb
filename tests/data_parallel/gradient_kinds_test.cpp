// Gradients that are sparse, and parameters that are complex.
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include "support/require.h"

namespace tessera {
namespace {

using testing::require;

at::Tensor wave(at::IntArrayRef shape, double phase) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.37 + phase).view(shape);
}

void fill(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model.parameters()) parameter.copy_(wave(parameter.sizes(), ++phase));
}

/// Two micro-batches on each of two ranks give the mean gradients of one process, twice over.
template <class Model>
void expect_mean_gradients(const DdpOptions& options, double tolerance = 1e-12) {
  run_threads(2, [&](const World& world) {
    const auto model = std::make_shared<Model>();
    Model alone;
    fill(*model);
    fill(alone);
    const auto ddp = distribute(model, world, options);
    const int batches = options.reproducible() ? 1 : 2;
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      alone.zero_grad();
      for (int batch = 0; batch < batches; ++batch) {
        model->loss(4 * step + 2 * batch + world.rank()).backward();
        for (const int rank : {0, 1}) (alone.loss(4 * step + 2 * batch + rank) / 2).backward();
      }
      const auto expected = alone.named_parameters();
      for (const auto& entry : model->named_parameters()) {
        const at::Tensor wanted = expected[entry.key()].grad().to_dense();
        require((entry.value().grad() - wanted).abs().max().template item<double>() <= tolerance,
                "the mean gradient of " + entry.key());
      }
    }
  });
}

struct Sparse : torch::nn::Module {
  Sparse()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)))),
        rows(register_parameter("rows", at::zeros({10, 4}))),
        head(register_module("head", torch::nn::Linear(4, 1))) {
    to(at::kDouble);
  }
  at::Tensor loss(int batch) {
    const at::Tensor which = torch::tensor({batch % 10, 3});
    return (head(table(which)) + at::embedding(rows, which, -1, false, /*sparse=*/true).square()).sum();
  }
  torch::nn::Embedding table;
  at::Tensor rows;
  torch::nn::Linear head;
};

struct Complex : torch::nn::Module {
  Complex()
      : phases(register_parameter("phases", at::zeros({4, 4}, at::kComplexDouble))),
        head(register_module("head", torch::nn::Linear(4, 4))) {
    head->to(at::kDouble);
  }
  at::Tensor loss(int batch) {
    const at::Tensor mixed = head(wave({2, 4}, batch)).to(at::kComplexDouble).matmul(phases);
    return (mixed * mixed.conj()).abs().sum() + at::imag(mixed).sum();
  }
  at::Tensor phases;
  torch::nn::Linear head;
};

TEST(GradientKinds, SparseOnesAreAveraged) {
  expect_mean_gradients<Sparse>({});
  expect_mean_gradients<Sparse>(DdpOptions().find_unused_parameters(true));
  expect_mean_gradients<Sparse>(DdpOptions().gradient_as_bucket_view(false));
  expect_mean_gradients<Sparse>(DdpOptions().reproducible(true).micro_batches(2));
}

TEST(GradientKinds, ComplexOnesAreAveraged) {
  expect_mean_gradients<Complex>({});
  expect_mean_gradients<Complex>(DdpOptions().find_unused_parameters(true));
  expect_mean_gradients<Complex>(DdpOptions().gradient_as_bucket_view(false).bucket_bytes(64));
  expect_mean_gradients<Complex>(DdpOptions().reproducible(true).micro_batches(2));
}

}  // namespace
}  // namespace tessera
