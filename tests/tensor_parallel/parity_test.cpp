// Models of other tests, cut by a plan: they train as in one process.
#include <tessera/comm/world.h>
#include <tessera/optim/adamw.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parity/models.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, at::Tensor>;

struct Case {
  std::string model;
  TensorPlan plan;
  torch::Dtype dtype = torch::kDouble;
};

/// Some gradients are rounding alone, such as that of the bias of k, which softmax cancels. AdamW would make them as
/// large as any other, and rounding differs with the split. Other gradients are far above this.
constexpr double kEpsilon = 1e-6;

/// Outputs and gradients of each step (in single precision of the first: later ones have added up the rounding of all
/// before), and the parameters at the end; all whole.
Values train(const Case& parity, ParityModel& model, bool uses_adamw) {
  Values values;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (uses_adamw) {
    optimizer = std::make_unique<optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(1e-2).eps(kEpsilon));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(5e-2).momentum(0.9));
  }
  for (int step = 0; step < 10; ++step) {
    optimizer->zero_grad();
    at::Tensor input = model.input(step, 0);
    if (input.is_floating_point()) input.requires_grad_();
    const at::Tensor output = model.forward(input);
    model.loss(output, step, 0).backward();
    const std::string at_step = " in step " + std::to_string(step);
    if (parity.dtype == torch::kFloat && step > 0) {
      optimizer->step();
      continue;
    }
    values["output" + at_step] = at::add(output.detach(), 0);
    if (input.requires_grad()) values["gradient of the input" + at_step] = input.grad().clone();
    for (const auto& item : model.named_parameters()) {
      if (item.value().grad().defined()) values["gradient of " + item.key() + at_step] = item.value().grad().detach();
    }
    optimizer->step();
  }
  for (const auto& item : model.named_parameters()) values[item.key()] = item.value().detach();
  for (const auto& item : model.named_buffers()) values[item.key()] = item.value();
  return values;
}

at::Tensor plain(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false)).copy_(tensor);
}

/// Relative to a tensor's largest value, and of which tensor.
std::pair<double, std::string> largest_difference(const Values& found, const Values& expected) {
  require_equal(found.size(), expected.size(), "number of tensors");
  std::pair<double, std::string> largest{0, ""};
  for (const auto& [name, value] : expected) {
    const at::Tensor whole = plain(found.at(name)).to(at::kDouble);
    const at::Tensor wanted = value.to(at::kDouble);
    require_equal(whole.sizes().vec(), wanted.sizes().vec(), "shape of " + name);
    if (wanted.numel() == 0) continue;
    const double scale = std::max(wanted.abs().max().item<double>(), 1e-3);
    const double difference = (whole - wanted).abs().max().item<double>() / scale;
    if (std::isnan(difference)) return {INFINITY, name};
    largest = std::max(largest, {difference, name});
  }
  return largest;
}

void expect_parity(const Case& parity, bool uses_adamw) {
  const auto alone = make_parity_model(parity.model, parity.dtype);
  const Values expected = train(parity, *alone, uses_adamw);
  double tolerance = 1e-10;
  if (parity.dtype == torch::kFloat) {
    // One process rounds too: of gpt2 with these weights by more than 1e-5 of a gradient's largest value.
    const Values exact = train(parity, *make_parity_model(parity.model, torch::kDouble), uses_adamw);
    tolerance = std::max(1e-5, 2 * largest_difference(expected, exact).first);
  }
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto model = make_parity_model(parity.model, parity.dtype);
      const auto parallel = tensor_parallel(model, world, parity.plan);
      const Values found = train(parity, *model, uses_adamw);
      const auto [difference, name] = largest_difference(found, expected);
      require(difference <= tolerance, parity.model + " on " + std::to_string(num_ranks) + " ranks: " + name +
                                           " differs by " + std::to_string(difference * 1e6) + "e-6");
    });
  }
}

std::vector<Case> cases() {
  const TensorPlan blocks{{"*.attention", split_heads(2).packed(3)},
                          {"*.attention.out_proj", split_rows().heads(2)},
                          {"*.up", split_columns()},
                          {"*.down", split_rows()}};
  TensorPlan gpt = blocks;
  gpt.add("tokens", split_vocabulary());
  TensorPlan gpt2{{"gpt2.h.*.attn.c_attn", split_heads(2).packed(3).transposed()},
                  {"gpt2.h.*.attn.c_proj", split_rows().heads(2).transposed()},
                  {"gpt2.h.*.mlp.c_fc", split_columns().transposed()},
                  {"gpt2.h.*.mlp.c_proj", split_rows().transposed()},
                  {"gpt2.wte", split_vocabulary()}};
  return {{"gpt", gpt},
          {"recomputed gpt", gpt},
          {"gpt2", gpt2},
          {"transformer",
           {{"layers.*.layers.*.*_attn", split_heads(2).packed(3)},
            {"layers.*.layers.*.*_attn.out_proj", split_rows().heads(2)},
            {"layers.*.layers.*.linear1", split_columns()},
            {"layers.*.layers.*.linear2", split_rows()}}},
          {"conv",
           {{"first", split_columns()},
            {"first_norm", split_columns()},
            {"second", split_rows()},
            {"head", split_columns()}}},
          {"lstm", {{"cells", split_columns()}, {"head", split_rows()}}},
          {"sequential", {{"layers.0", split_columns()}, {"layers.3", split_columns()}, {"layers.5", split_rows()}}},
          {"function", {{"first", split_columns()}, {"second", split_columns()}}}};
}

class TensorParity : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParity, TrainsWithAdamWAsInOneProcess) { expect_parity(GetParam(), true); }

TEST_P(TensorParity, TrainsWithSgdInSinglePrecision) {
  Case parity = GetParam();
  parity.dtype = torch::kFloat;
  expect_parity(parity, false);
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParity, ::testing::ValuesIn(cases()), [](const auto& test) {
  std::string name = test.param.model;
  std::ranges::replace(name, ' ', '_');
  return name;
});

}  // namespace
}  // namespace tessera::testing
