// Gradients that are sparse, and parameters that are complex or not in row-major order.
#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <functional>

#include <tessera/data_parallel/gradient_hooks.h>

#include "support/require_tensors.h"
#include "support/sum_hook.h"

namespace tessera {
namespace {

using testing::require;

using testing::require_equal;
using testing::SumHook;

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
void expect_mean_gradients(const std::function<DdpOptions()>& make_options, double tolerance = 1e-12) {
  run_threads(2, [&](const World& world) {
    const DdpOptions options = make_options();  // a hook of each rank's own
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

template <class Model>
void expect_mean_gradients(const DdpOptions& options) {
  expect_mean_gradients<Model>([&] { return options; });
}

/// Gradients that are divided while they come.
DdpOptions with_sum_hook() { return DdpOptions().hook(std::make_shared<SumHook>()); }

/// The gradient of `matrix` is of rank one, on each rank and in the mean: PowerSGD gives it exactly.
struct ThinGradient : torch::nn::Module {
  ThinGradient() : matrix(register_parameter("matrix", at::zeros({16, 16}, at::kComplexDouble))) {
    register_parameter("bias", at::zeros({3}, at::kComplexDouble));
  }
  at::Tensor loss(int batch) {
    const at::Tensor column = at::complex(wave({16}, batch), wave({16}, batch + 1));
    return at::real((wave({16}, 0.5) * matrix.matmul(column)).sum()) + at::imag(parameters()[1]).sum() * (batch + 1);
  }
  at::Tensor matrix;
};

/// Parameters by column, with gaps, and in channels of another order; real or complex.
template <at::ScalarType kDtype>
struct OtherLayouts : torch::nn::Module {
  OtherLayouts()
      : columns(register_parameter("columns", at::zeros({3, 4}, kDtype).t())),
        gaps(register_parameter("gaps", at::zeros({4, 8}, kDtype).narrow(1, 2, 3))),
        plain(register_parameter("plain", at::zeros({5}, kDtype))) {}
  at::Tensor loss(int batch) {
    at::Tensor sum = (columns.mul(wave({4, 3}, batch)) + gaps.mul(wave({4, 3}, batch + 7))).square().sum();
    if (batch % 2 == 0) sum = sum + plain.mul(wave({5}, batch)).sum();  // the other rank does not use it
    sum = sum.to(at::kComplexDouble);
    return at::real(sum) + at::imag(sum);
  }
  at::Tensor columns, gaps, plain;
};

TEST(GradientKinds, SparseOnesAreAveraged) {
  expect_mean_gradients<Sparse>(DdpOptions());
  expect_mean_gradients<Sparse>(DdpOptions().find_unused_parameters(true));
  expect_mean_gradients<Sparse>(DdpOptions().gradient_as_bucket_view(false));
  expect_mean_gradients<Sparse>(DdpOptions().reproducible(true).micro_batches(2));
}

TEST(GradientKinds, ComplexOnesAreAveraged) {
  expect_mean_gradients<Complex>(DdpOptions());
  expect_mean_gradients<Complex>(DdpOptions().find_unused_parameters(true));
  expect_mean_gradients<Complex>(DdpOptions().gradient_as_bucket_view(false).bucket_bytes(64));
  expect_mean_gradients<Complex>(DdpOptions().reproducible(true).micro_batches(2));
  expect_mean_gradients<Complex>(with_sum_hook);
  expect_mean_gradients<Complex>([] { return with_sum_hook().find_unused_parameters(true); });
}

TEST(GradientKinds, ComplexOnesGoThroughEachHook) {
  for (const char* name : {"fp16", "bf16", "int8"}) {
    expect_mean_gradients<Complex>([&] { return DdpOptions().compression(name); }, /*tolerance=*/0.5);
  }
  expect_mean_gradients<ThinGradient>(
      [] { return DdpOptions().hook(power_sgd_hook(PowerSgdOptions().rank(2).start_step(0).min_compression(1))); },
      /*tolerance=*/1e-11);
}

TEST(GradientKinds, OfOtherLayoutsAreAveraged) {
  using Real = OtherLayouts<at::kDouble>;
  using Complexes = OtherLayouts<at::kComplexDouble>;
  const auto unused = DdpOptions().find_unused_parameters(true);
  expect_mean_gradients<Real>(unused);
  expect_mean_gradients<Complexes>(unused);
  expect_mean_gradients<Real>([] { return with_sum_hook().find_unused_parameters(true); });
  expect_mean_gradients<Complexes>([] { return with_sum_hook().find_unused_parameters(true); });
}

/// Writes into the views that it is given.
struct CountingHook : GradientHook {
  std::string name() const override { return "counting"; }
  Finish start(const GradientBucket& bucket, const Communicator& /*comm*/) override {
    return [bucket] {
      for (at::Tensor gradient : bucket.gradients) {
        gradient.copy_(at::arange(gradient.numel(), at::kDouble).view(gradient.sizes()));
      }
      return bucket.flat;
    };
  }
};

TEST(GradientKinds, HooksSeeThemInTheShapeOfTheirParameters) {
  run_threads(2, [](const World& world) {
    const auto real = std::make_shared<OtherLayouts<at::kDouble>>();
    const auto complex = std::make_shared<OtherLayouts<at::kComplexDouble>>();
    const auto ddp = distribute(real, world, DdpOptions().hook(std::make_shared<CountingHook>()));
    const auto complex_ddp = distribute(complex, world, DdpOptions().hook(std::make_shared<CountingHook>()));
    real->loss(0).backward();
    complex->loss(0).backward();
    for (const char* name : {"columns", "gaps"}) {
      const at::Tensor counted = real->named_parameters()[name].grad();
      require_equal(counted, at::arange(12, at::kDouble).view({4, 3}), name);
      const at::Tensor parts = at::view_as_real(complex->named_parameters()[name].grad());
      require_equal(parts, at::arange(24, at::kDouble).view({4, 3, 2}), name);
    }
  });
}

}  // namespace
}  // namespace tessera
