#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// Scales the gradients of `parameters` down so that all of them together have a norm of at most `max_norm`; returns
/// the norm that they had. Parameters without gradient do not count, one that is listed twice
/// counts once.
///
/// The squares are added up without rounding (`ExactSum`). So the result has the same bits for every number of threads
/// and ranks, for parameters in any order, and for gradients in shards (`clip_grad_norm` of a ShardedModel), which
/// `torch::nn::utils::clip_grad_norm_` does not promise. A norm that is not finite is returned and the gradients stay
/// as they are: check it, and skip the step.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace tessera
