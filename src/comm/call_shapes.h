#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/call.h"

namespace tessera::comm {

/// `tensor` with `dim` first, contiguous, and a check of `dim`.
inline at::Tensor dim_first(Call& call, const at::Tensor& tensor, std::int64_t& dim) {
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    call.refuse("a tensor of " + std::to_string(tensor.dim()) + " dimensions has no dim " + std::to_string(dim));
  }
  if (dim < 0) dim += tensor.dim();
  return (dim == 0 ? tensor : tensor.movedim(dim, 0)).contiguous();
}

inline at::Tensor with_rows(const at::Tensor& like, std::int64_t rows) {
  auto shape = like.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, like.options());
}

/// Makes `rows`, with its dim put back in place, the result of the call.
inline void give_back(Call& call, const at::Tensor& rows, std::int64_t dim) {
  if (dim == 0) {
    call.result(rows);
    return;
  }
  auto shape = rows.sizes().vec();
  std::rotate(shape.begin(), shape.begin() + 1, shape.begin() + dim + 1);
  at::Tensor result = at::empty(shape, rows.options());
  call.result(result).then([rows, dim, result] { result.copy_(rows.movedim(0, dim)); });
}

inline std::int64_t elements_per_row(const at::Tensor& rows) { return c10::multiply_integers(rows.sizes().slice(1)); }

inline bool all_same(const Communicator::Sizes& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](std::int64_t size) { return size == sizes.front(); });
}

inline std::vector<at::Tensor> cut(const at::Tensor& tensor, const Communicator::Sizes& sizes) {
  return tensor.split_with_sizes(sizes);
}

inline void check_op(Call& call, const at::Tensor& tensor, ReduceOp op) {
  if (op != ReduceOp::kAvg || tensor.is_floating_point()) return;
  call.refuse(std::string("an average of ") + c10::toString(tensor.scalar_type()) +
              " would have to be rounded; sum and divide it yourself, or convert it to a floating-point type");
}

inline void check_rank(Call& call, int rank, int size, const char* what) {
  if (rank >= 0 && rank < size) return;
  call.refuse(std::string(what) + " " + std::to_string(rank) + " is not a rank of this group; it has 0 to " +
              std::to_string(size - 1));
}

/// A contiguous stand-in for `tensor` that is copied back afterwards, or `tensor` itself.
inline at::Tensor in_place(Call& call, const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor flat = tensor.contiguous();
  call.then([tensor, flat] {
    const at::NoGradGuard guard;
    tensor.copy_(flat);
  });
  return flat;
}

template <typename Options>
Options options_for(std::chrono::milliseconds timeout, bool async) {
  Options options;
  options.timeout = timeout;
  options.asyncOp = async;
  return options;
}

}  // namespace tessera::comm
