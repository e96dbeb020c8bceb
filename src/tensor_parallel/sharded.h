#pragma once

#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/operator_call.h>
#include <tessera/shard/placement.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "tensor_parallel/tensor_axis.h"

namespace tessera::tp {

/// Note [Cuts]
/// A tensor that acts is cut: each rank has some indices of one dimension (Placement::shard). Its granule is what a
/// rank has of a block, so two cuts are equal exactly when all ranks hold the same indices, and a view of a cut tensor
/// is cut. A tensor that does not act is whole, and the same on every rank of the axis.
///
/// The calculus of gradients: that of a whole tensor is whole, the same on every rank; that of a cut tensor is cut. So
/// where a whole tensor meets a cut one, something must be added up or gathered in backward, and where a cut dimension
/// is summed over, in forward: collectives.h. All else follows from the operators themselves.
class CutData : public intercept::ActingData {
 public:
  /// `size`: of the dimension that is cut. `parameter`: whose cut this comes from.
  CutData(std::shared_ptr<TensorAxis> axis, const Placement& cut, std::int64_t size, const std::string* parameter);

  TensorAxis& axis() const { return *axis_; }
  const std::shared_ptr<TensorAxis>& shared_axis() const { return axis_; }
  const Placement& cut() const { return cut_; }
  std::int64_t dim() const { return cut_.dim(); }
  std::int64_t size() const { return size_; }
  std::int64_t local_size() const { return local_size_; }
  const std::string* parameter() const { return parameter_; }

  /// Throws ConfigError when they belong to different models.
  void require_axis_of(const CutData& other) const;
  /// Whether each rank holds the same indices of both, in whatever dimensions. Requires the same axis, as above.
  bool has_indices_of(const CutData& other) const;

 private:
  std::shared_ptr<TensorAxis> axis_;
  Placement cut_;
  std::int64_t size_;
  std::int64_t local_size_;
  const std::string* parameter_;
};
using CutDataPtr = c10::intrusive_ptr<CutData>;

/// The kind of all tensors that are cut.
const intercept::ActingKind& cut_kind();

/// Another reference to a cut that others hold.
CutDataPtr shared(const CutData& cut);
/// Null for a tensor that is whole.
CutDataPtr cut_of(const at::Tensor& tensor);
/// With the granule of Note [Cuts].
CutDataPtr make_cut(std::shared_ptr<TensorAxis> axis, const Placement& cut, std::int64_t size,
                    const std::string* parameter);
/// The same cut in another dimension, of another number of blocks and another size.
CutDataPtr moved_cut(const CutDataPtr& cut, std::int64_t dim, std::int64_t blocks, std::int64_t chunk,
                     std::int64_t size);
CutDataPtr moved_cut(const CutDataPtr& cut, std::int64_t dim);

/// An argument of an operator: the local tensor to compute with.
struct Operand {
  at::Tensor local;
  CutDataPtr cut;  ///< null: whole

  std::int64_t dim() const { return local.dim(); }
  /// Of the whole tensor.
  std::int64_t size(std::int64_t dim) const { return cut && cut->dim() == dim ? cut->size() : local.size(dim); }
  std::vector<std::int64_t> sizes() const;
  std::int64_t numel() const;
};
Operand read(const at::Tensor& tensor);

/// Note [Strides of the whole]
/// A program asks whether a tensor is contiguous, and random numbers are drawn in the order of memory. So a cut tensor
/// has the strides that the whole would have in one process. They do not follow from those of the part, which may have
/// one index or none: rules compute them from those of their arguments. They are the same on every rank.

/// A tensor that is cut so. Its strides are guessed from the part: for new tensors in row-major order.
at::Tensor wrap(at::Tensor local, const CutDataPtr& cut);
at::Tensor wrap(at::Tensor local, const CutDataPtr& cut, at::IntArrayRef whole_strides);
/// As new memory that an operator fills in the order of `like`, the strides of an argument of the same shape.
at::Tensor wrap_dense(at::Tensor local, const CutDataPtr& cut, at::IntArrayRef like);
/// The same values, whose memory holds the dimensions in the order that these strides have.
at::Tensor in_order_of(at::IntArrayRef like, const at::Tensor& tensor);
/// The result of an operator: a cut tensor, or the local one if `cut` is null.
at::Tensor wrap_result(at::Tensor local, const CutDataPtr& cut);
/// A tensor with bytes that is cut as the parameter `like` is, such as an optimizer's state.
at::Tensor make_held(at::Tensor local, const CutDataPtr& cut, const at::Tensor& like);

/// Where the operator that runs now is, for the log.
const Site* current_site(const CutData& cut);

/// While one lives, this operator runs: for messages and the log.
class CurrentCall {
 public:
  explicit CurrentCall(const intercept::OperatorCall& call);
  ~CurrentCall();
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;

 private:
  const intercept::OperatorCall* before_;
};

}  // namespace tessera::tp
