#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data_parallel {

/// The parameters' gradients as views of the bucket's `buffer`, in the layout of the reducer: one after another, in the
/// strides of their parameters if these leave no gaps, else in row-major order. The views of LibTorch's GradBucket are
/// always in row-major order, and too short for complex parameters, whose buffer holds two real numbers for each
/// element.
std::vector<at::Tensor> gradients_in(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters);

/// Views complex numbers as pairs of real ones. Their average is the average of the parts, so hooks and groups need not
/// support complex numbers.
at::Tensor as_real(const at::Tensor& tensor);

/// One tensor for each dtype and device, one-dimensional.
using FlatBuffers = std::vector<at::Tensor>;

/// Where each parameter lies when all of one dtype and device are laid one after another.
/// Thread-safety: const functions may be called from any thread, if they touch different tensors.
class FlatParameters {
 public:
  explicit FlatParameters(std::vector<at::Tensor> parameters);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The elements of all parameters together, and a hash of their sizes and types.
  std::int64_t num_elements() const;
  std::int64_t fingerprint() const;
  std::size_t num_buffers() const { return groups_.size(); }

  /// Uninitialised, in memory that the group transfers with the fewest copies.
  FlatBuffers make_buffers(const Communicator& comm) const;

  /// An undefined gradient reads as zeros, and is created when written. Throws ConfigError for a sparse one.
  void read_gradients(const FlatBuffers& buffers) const;
  void write_gradients(const FlatBuffers& buffers) const;
  void read_values(const FlatBuffers& buffers) const;
  void write_values(const FlatBuffers& buffers) const;
  /// Where the values of parameter `index` lie, in its shape.
  at::Tensor view_of(const FlatBuffers& buffers, std::size_t index) const;

 private:
  struct Slot {
    std::size_t group;
    std::int64_t offset;
  };
  struct Group {
    at::TensorOptions options;
    std::int64_t num_elements = 0;
  };

  std::vector<at::Tensor> parameters_;
  std::vector<Slot> slots_;  // of each parameter
  std::vector<Group> groups_;
};

}  // namespace tessera::data_parallel
