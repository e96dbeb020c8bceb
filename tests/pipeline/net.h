#pragma once

#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/pipeline/pipeline.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "parity/models.h"
#include "support/error_message.h"
#include "support/require.h"

namespace tessera::testing {

namespace nn = torch::nn;
using at::Tensor;

/// Two layers, one on each stage, and things between them that a forward may use.
struct Net : nn::Module {
  Net()
      : first(register_module("first", nn::Linear(4, 4))),
        scale(register_parameter("scale", torch::ones({4}))),
        table(register_buffer("table", torch::arange(4))),
        counter(register_buffer("counter", torch::zeros({1}))),
        second(register_module("second", nn::Linear(4, 4))),
        norm(register_module("norm", nn::BatchNorm1d(4))) {
    to(at::kDouble);
    fill_by_formula(*this);
  }

  nn::Linear first;
  Tensor scale;
  Tensor table;
  Tensor counter;
  nn::Linear second;
  nn::BatchNorm1d norm;
};

using Forward = std::function<Tensor(Net& net, const Tensor& x)>;  // the loss

inline Tensor batch(int num_samples = 4, double phase = 1) { return formula({num_samples, 4}, phase, at::kDouble); }
inline PipelineOptions two_stages() { return PipelineOptions().split({"second"}); }

inline Tensor plain_forward(Net& net, const Tensor& x) { return net.second(torch::tanh(net.first(x))).square().mean(); }

/// Gives its input back, and a gradient of its own.
struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/, const Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * 2};
  }
};

using Gradients = std::map<std::string, Tensor>;

inline void note_gradients(const Net& net, Gradients& gradients) {
  for (const auto& item : net.named_parameters()) {
    if (item.value().grad().defined()) gradients[item.key()] = item.value().grad().clone();
  }
}

/// Of one process that accumulates the same micro-batches.
inline Gradients gradients_alone(const Forward& forward, int num_micro_batches, const Tensor& x) {
  Net net;
  Gradients gradients;
  for (const Tensor& micro : x.tensor_split(num_micro_batches)) {
    const double share = static_cast<double>(micro.size(0)) / static_cast<double>(x.size(0));
    const Tensor loss = forward(net, micro) * share;
    loss.backward();
    gradients["loss"] = gradients["loss"].defined() ? gradients["loss"] + loss.detach() : loss.detach();
  }
  note_gradients(net, gradients);
  for (const auto& item : net.named_buffers()) gradients["buffer " + item.key()] = item.value().clone();
  return gradients;
}

/// On two stages, each gradient on one of the ranks.
inline void expect_same(const Forward& forward, int num_micro_batches = 2, const Tensor& x = batch(),
                        const PipelineOptions& options = two_stages()) {
  const Gradients expected = gradients_alone(forward, num_micro_batches, x);
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, options);
    Gradients found;
    found["loss"] = pipe.step(x, num_micro_batches, [&](const Tensor& micro) { return forward(*net, micro); });
    note_gradients(*net, found);
    for (const StateSlice& one : pipe.state_slices()) {
      const std::string name = "buffer " + one.name;
      if (one.slice.is_whole() && expected.contains(name))
        found[name] = one.values.view(expected.at(name).sizes()).clone();
    }
    for (const auto& [name, value] : found) {
      require(expected.contains(name), "one process has no gradient of " + name);
      require(at::allclose(value, expected.at(name), 1e-12, 1e-12), name + " differs");
    }
    const Tensor count = torch::tensor(static_cast<std::int64_t>(found.size()) - 1);
    world.comm().all_reduce(count);
    require_equal(count.item<std::int64_t>(), static_cast<std::int64_t>(expected.size()) - 1, "number of gradients");
  });
}

inline void expect_refused(const Forward& forward, const std::string& words,
                           const PipelineOptions& options = two_stages()) {
  const std::string message = message_of<ConfigError>([&] {
    run_threads(2, [&](const World& world) {
      const auto net = std::make_shared<Net>();
      const Pipeline pipe = pipeline(net, world, options);
      pipe.step(batch(), 2, [&](const Tensor& micro) { return forward(*net, micro); });
    });
  });
  EXPECT_THAT(message, ::testing::HasSubstr(words));
}

}  // namespace tessera::testing
