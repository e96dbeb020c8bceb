#include <tessera/data_parallel/distribute.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"

// Complex weights, whose gradients are real numbers twice as many for norms, averages and copies.

namespace tessera::testing {
namespace {

using at::Tensor;

class ComplexGradientsOnDevices : public DeviceTest {};

struct Turned : torch::nn::Module {
  Turned()
      : layer(register_module("layer", torch::nn::Linear(5, 3))),
        turn(register_parameter("turn", torch::zeros({3}, at::kComplexFloat))) {
    fill_by_formula(*layer);
    const torch::NoGradGuard no_grad;
    turn.copy_(at::complex(formula({3}, 1, at::kFloat), formula({3}, 2, at::kFloat)));
  }
  Tensor forward(const Tensor& x) { return at::real(layer(x) * turn * turn.conj() + turn); }

  torch::nn::Linear layer;
  Tensor turn;
};

/// The norm before, and all weights behind some steps, as real numbers.
Tensor trained_with_clipping(const World& world, const at::Device& device) {
  const auto model = std::make_shared<Turned>();
  model->to(device);
  const auto ddp = distribute(model, world);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor input = formula({4, 5}, 2.0 * step + world.rank(), torch::kFloat).to(device);
    model->forward(input).square().sum().backward();
    const double norm = step == 1 ? clip_grad_norm(model->parameters(), 0.1) : clip_grad_norm(ddp, 0.1);
    all.push_back(torch::full({1}, norm, torch::kFloat));
    optimizer.step();
  }
  for (const Tensor& one : model->parameters()) {
    const Tensor values = one.detach().cpu();
    all.push_back((values.is_complex() ? at::view_as_real(values) : values).flatten());
  }
  return torch::cat(all);
}

TEST_F(ComplexGradientsOnDevices, AreAveragedAndClippedAsOnTheCpu) {
  Tensor expected;
  run_threads(2, [&](const World& world) {
    Tensor found = trained_with_clipping(world, at::kCPU);
    if (world.rank() == 0) expected = std::move(found);
  });
  delay(7);
  Tensor found;
  on_devices(2, [&](const World& world, const at::Device& device) {
    Tensor mine = trained_with_clipping(world, device);
    if (world.rank() == 0) found = std::move(mine);
  });
  // A device tells the CPU the norm of each tensor, so the last bits of the sum differ.
  EXPECT_TRUE(torch::allclose(found, expected, 1e-5, 1e-6)) << found << expected;
}

}  // namespace
}  // namespace tessera::testing
