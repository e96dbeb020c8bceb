#pragma once

#include <tessera/intercept/deferred_init.h>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <vector>

namespace tessera {

/// Makes one layer: `[] { return torch::nn::AnyModule(torch::nn::Linear(8, 8)); }`.
using LayerFactory = std::function<torch::nn::AnyModule()>;

/// A model of layers that follow each other, whose parameters get bytes when pipeline() puts them on their ranks, and
/// there alone. Values are those that one process would give them that makes all layers in this order.
inline torch::nn::Sequential deferred_layers(const std::vector<LayerFactory>& factories) {
  const DeferredInit no_bytes;
  torch::nn::Sequential layers;
  for (const LayerFactory& make : factories) layers->push_back(make());
  return layers;
}

}  // namespace tessera
