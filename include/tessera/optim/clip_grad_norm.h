#pragma once

#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <vector>

namespace tessera {

/// Scales the gradients of `parameters` down so that all of them together have a norm of at most `max_norm`; returns
/// the norm before scaling. Parameters without gradient do not count; one that is listed twice counts once.
///
/// The squares are added up without rounding (`ExactSum`). So the result has the same bits for every number of threads
/// and ranks, for parameters in any order, and for gradients in shards, which `torch::nn::utils::clip_grad_norm_` does
/// not promise. A norm that is not finite is returned and the gradients stay as they are: check it, and skip the step.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm);

/// The same for all gradients of a model on all ranks that share it, with the same bits. Collective: over these ranks,
/// if they hold different parts. Throws ConfigError if these ranks together hold only a part of the model.
double clip_grad_norm(const ParallelModel& model, double max_norm);

namespace optim {
double clip_together(const std::vector<ParallelModel>& models, double max_norm);
}  // namespace optim

/// The same for several models as if they were one.
template <std::derived_from<ParallelModel> Model>
double clip_grad_norm(const std::vector<Model>& models, double max_norm) {
  return optim::clip_together({models.begin(), models.end()}, max_norm);
}

}  // namespace tessera
