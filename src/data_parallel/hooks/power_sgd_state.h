#pragma once

#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::data_parallel {

/// A gradient that travels as left * right^T.
struct ThinMatrix {
  std::size_t tensor = 0;  ///< its place among the bucket's gradients
  at::Tensor left;         ///< [rows, rank], a view of PowerSgdState::lefts
  at::Tensor right;        ///< [columns, rank], a view of PowerSgdState::rights; the start of the next step
  at::Tensor error;        ///< [rows, columns]: what the approximations have lost so far
  at::Tensor start;        ///< where `right` starts anew; kept on devices, once it was needed
};

/// What one bucket keeps from step to step.
class PowerSgdState {
 public:
  PowerSgdState(const GradientBucket& bucket, const Communicator& comm, const PowerSgdOptions& options);

  /// Whether it was made for these parameters and shapes.
  bool serves(const GradientBucket& bucket) const;
  /// Random right factors, no errors.
  void restart();
  /// The same if `finite`, of one element on the device, is false; the host does not wait for it.
  void restart_unless(const at::Tensor& finite);

  /// Whether its parameters are these.
  bool is_of(const std::vector<at::Tensor>& parameters) const;
  /// Right factors and errors, by the place of their parameter in the bucket: "right/0", "error/0".
  std::map<std::string, at::Tensor> memory() const;
  /// Restores what memory() returned in the saved run.
  void recall(const BucketMemory& memory) const;
  /// Why the saved state of a bucket does not fit, or "".
  static std::string why_not(const BucketMemory& memory, const PowerSgdOptions& options);

  const std::vector<ThinMatrix>& matrices() const { return matrices_; }
  const at::Tensor& lefts() const { return lefts_; }
  const at::Tensor& rights() const { return rights_; }

  /// The gradients that travel exactly, joined.
  const at::Tensor& rest() const { return rest_; }
  void collect_rest(const GradientBucket& bucket);
  void return_rest(const std::vector<at::Tensor>& gradients) const;

 private:
  void make_factors(const GradientBucket& bucket, const Communicator& comm, const PowerSgdOptions& options);
  void make_rest(const GradientBucket& bucket, const Communicator& comm);
  at::Tensor start_of(const ThinMatrix& matrix) const;

  std::size_t bucket_index_;
  std::int64_t seed_;
  at::TensorOptions gradient_options_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<ThinMatrix> matrices_;
  std::vector<std::size_t> exact_;  // the tensors of rest_, in its order
  at::Tensor lefts_;
  at::Tensor rights_;
  at::Tensor rest_;
};

}  // namespace tessera::data_parallel
