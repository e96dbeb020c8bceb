#include <ATen/ATen.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <torch/library.h>

#include <optional>

// Sparse gradients, as an embedding makes them: rows by their numbers, added to dense tensors. LibTorch's functions for
// the parts of a sparse tensor are those of every device.

namespace tessera::testing::sim {
namespace {

using at::Tensor;

/// In the order of the rows, as on the CPU.
Tensor& add_rows(Tensor& dense, const Tensor& rows, const at::Scalar& factor) {
  TORCH_CHECK(!dense.is_sparse() && rows.is_sparse() && rows.sparse_dim() == 1,
              "the simulated device adds sparse rows to dense tensors, and nothing else that is sparse");
  return dense.index_add_(0, rows._indices()[0], rows._values(), factor);
}

/// Of two that are sparse: the rows of both, one behind the other.
Tensor plus_rows(const Tensor& first, const Tensor& rows, const at::Scalar& factor) {
  if (first.is_sparse() && rows.is_sparse()) {
    return at::_sparse_coo_tensor_unsafe(at::cat({first._indices(), rows._indices()}, 1),
                                         at::cat({first._values(), rows._values() * factor}), first.sizes());
  }
  Tensor sum = first.clone();
  return add_rows(sum, rows, factor);
}

Tensor as_dense(const Tensor& rows, std::optional<at::ScalarType> dtype, std::optional<bool> /*masked_gradient*/) {
  Tensor dense = at::zeros(rows.sizes(), rows.options().layout(at::kStrided));
  add_rows(dense, rows, 1);
  return dtype ? dense.to(*dtype) : dense;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  library.impl("_indices", &at::native::_indices_sparse);
  library.impl("_values", &at::native::_values_sparse);
  library.impl("_nnz", &at::native::_nnz_sparse);
  library.impl("sparse_dim", &at::native::sparse_dim_sparse);
  library.impl("dense_dim", &at::native::dense_dim_sparse);
  library.impl("is_coalesced", &at::native::is_coalesced_sparse);
  library.impl("_coalesced_", &at::native::_coalesced_sparse_);
  library.impl("add_.Tensor", &add_rows);
  library.impl("add.Tensor", &plus_rows);
  library.impl("_to_dense", &as_dense);
}

}  // namespace tessera::testing::sim
