#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data_parallel {

/// One tensor for each dtype and device, one-dimensional.
using FlatBuffers = std::vector<at::Tensor>;

/// Where each parameter lies when all of one dtype and device are laid one after another.
/// Thread-safety: const functions may be called from any thread, as far as they touch different tensors.
class FlatParameters {
 public:
  explicit FlatParameters(std::vector<at::Tensor> parameters);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Of all parameters together, and a number that differs when their sizes or types do.
  std::int64_t num_elements() const;
  std::int64_t fingerprint() const;
  std::size_t num_buffers() const { return groups_.size(); }

  /// Uninitialised, in memory that the group moves with the fewest copies.
  FlatBuffers make_buffers(const Communicator& comm) const;

  /// An undefined gradient reads as zeros, and is made when written. Throws ConfigError for a sparse one.
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
