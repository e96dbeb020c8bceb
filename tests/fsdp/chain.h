#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "fsdp/alone.h"

namespace tessera::testing {

constexpr int kBatch = 3;

/// Three layers, three units.
struct Chain : torch::nn::Module {
  Chain()
      : first(register_module("first", torch::nn::Linear(5, 8))),
        second(register_module("second", torch::nn::Linear(8, 8))),
        third(register_module("third", torch::nn::Linear(8, 2))) {
    to(at::kDouble);
  }
  virtual at::Tensor forward(const at::Tensor& x) { return third(torch::tanh(second(torch::tanh(first(x))))); }

  torch::nn::Linear first;
  torch::nn::Linear second;
  torch::nn::Linear third;
};

inline at::Tensor chain_input(int step, int part) { return wave({kBatch, 5}, 3 * step + part); }

template <class Model>
at::Tensor loss_of(Model& model, int step, int part) {
  return (model.forward(chain_input(step, part)) - wave({kBatch, 2}, step + 2 * part)).square().mean();
}

template <class Model>
void one_backward(Model& model, int step, int part, double share) {
  (loss_of(model, step, part) * share).backward();
}

inline std::shared_ptr<Chain> filled_chain() {
  auto model = std::make_shared<Chain>();
  fill(*model);
  return model;
}

}  // namespace tessera::testing
