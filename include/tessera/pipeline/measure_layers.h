#pragma once

#include <tessera/mesh/ranks.h>
#include <tessera/pipeline/pipeline_batch.h>

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace tessera {

/// The seconds that forward and backward of each layer take on rank 0, for `PipelineOptions::layer_costs`. What lies
/// between two layers counts for the first one, as when a model is cut. Parameters, gradients, buffers and random
/// numbers are as before. Collective: over `ranks`, each of which computes all of the model; call it before pipeline().
/// Throws ConfigError for a model without layers: elements of a `ModuleList` or `Sequential`.
std::vector<double> measure_layers(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                                   const PipelineBatch& batch);

///   auto costs = tessera::measure_layers(model, mesh["pp"], micro_batch, loss);
template <class Micro, class Loss>
std::vector<double> measure_layers(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                                   const Micro& micro_batch, const Loss& loss) {
  return measure_layers(model, ranks, make_pipeline_batch(std::vector<Micro>{micro_batch}, loss, SampleCount{}));
}

}  // namespace tessera
