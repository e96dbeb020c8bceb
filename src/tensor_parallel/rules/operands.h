#pragma once

#include <tessera/intercept/operator_call.h>
#include <tessera/intercept/split_product.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor_parallel/sharded.h"

namespace tessera::tp {

/// A dimension from the front. Requires: it exists.
inline std::int64_t from_front(std::int64_t dim, std::int64_t num_dims) { return dim < 0 ? dim + num_dims : dim; }

/// Whether both are cut in the same way, counted from the last dimension.
bool same_from_back(const Operand& a, const Operand& b);

/// Whole, however it was.
at::Tensor whole(const Operand& operand);

/// A tensor as an operand of an operator whose result is cut as `cut` is, in the dimension `from_back` counted from the
/// last (1: the last): the part of a tensor that has this dimension, all of one that broadcasts along it. Nullopt: the
/// shapes do not fit, and the operator shall say so itself.
std::optional<at::Tensor> fitted(const Operand& operand, const CutDataPtr& cut, std::int64_t from_back);

/// Whether some rank has nothing. The same on every rank.
bool has_empty_part(const CutData& cut);
/// Note [Ranks that have nothing]
/// recompute() runs a function again, as far as the tensors that it saved for its gradients need it. So all ranks must
/// save as many, or one would communicate in backward and another would not: a rank that has nothing runs the operators
/// that the others run.
///
/// A local tensor, and if it has no index of a dimension, one of zeros, so that there is something to choose from.
at::Tensor with_one_index(const at::Tensor& local, std::int64_t dim);

/// In the precision that autocast uses for operators that need range, as a loss does; the tensor itself without
/// autocast.
at::Tensor in_full_precision(const at::Tensor& tensor);
using intercept::in_product_precision;

/// The place of the argument of that name; nullopt: the operator has none.
std::optional<std::size_t> argument_named(const intercept::OperatorCall& call, const std::string& name);

/// After a write to the local tensor of a cut one. A tensor with bytes has no history; throws ConfigError where it
/// would need one.
void after_write(const at::Tensor& written, const at::Tensor& local);

/// The tensor of an optional argument; undefined if there is none.
at::Tensor optional_tensor(intercept::OperatorCall& call, std::size_t index);

/// For operators with one tensor in front: runs the operator on the local tensor; each result is cut so. Other tensors
/// among the arguments are gathered.
void run_local(intercept::OperatorCall& call, const Operand& input, const CutDataPtr& result);

}  // namespace tessera::tp
