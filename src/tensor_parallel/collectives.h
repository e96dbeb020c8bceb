#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tensor_parallel/sharded.h"

namespace tessera::tp {

/// Note [One f for all consumers]
/// A whole tensor that several cut operators use, as q, k and v do, gets a gradient from each. They are added first,
/// and the sum is reduced once: all consumers get the same node, as long as a graph holds it.
///
/// Note [A sum under way]
/// Only the graph before a layer needs the sum of its input's gradient, not the gradients of its own weights. So the
/// node that all consumers share starts the sum and returns, and another one, which the engine runs as late as it can,
/// waits for it. In between the engine computes the gradients of weights (intercept's Note [Weight gradients apart]).

/// A whole tensor for an operator that computes with it differently on each rank: its gradient is summed in backward.
at::Tensor enter(const at::Tensor& whole, const CutData& cut);
/// The number in autograd's engine of what overlaps the sum of the gradient of a tensor that `enter()` returned.
/// Nullopt: it is not summed, or nothing shall overlap it.
std::optional<std::uint64_t> number_during_sum(const at::Tensor& entered);
/// The sum of the ranks' tensors. The gradient of each is that of the sum. It is in the same memory where the
/// caller gives the only reference.
at::Tensor sum_over_ranks(at::Tensor local, const CutData& cut);
/// All of a tensor that is cut. The gradient is the part.
at::Tensor gather_whole(const at::Tensor& local, const CutDataPtr& cut);
/// This rank's part of a whole tensor. The gradient is gathered.
at::Tensor take_part_of(const at::Tensor& whole, const CutDataPtr& cut);

/// Compares a whole tensor between the ranks, as long as the axis does so.
void check_same(const at::Tensor& whole, const CutData& cut);

/// As plain tensor: what a cut tensor is when all of it is there.
at::Tensor whole_of(const at::Tensor& tensor);
/// The gradient of a whole tensor. Of a custom function it may come cut, or as a view of what was gathered.
at::Tensor whole_gradient(const at::Tensor& gradient);

}  // namespace tessera::tp
