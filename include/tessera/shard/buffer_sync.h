#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tessera {

/// One rank's buffers for all ranks, again and again while a model is trained.
/// Thread-safety: one thread at a time.
class BufferSync {
 public:
  /// They are the same on all ranks at this point.
  void note(const std::vector<at::Tensor>& buffers);
  /// `root`'s values; what has them already is not written to. Collective: over `comm`.
  void take(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root);

 private:
  void write(const at::Tensor& buffer, const at::Tensor& value);

  std::unordered_map<const c10::TensorImpl*, std::uint32_t> versions_;  // when they were last taken
};

}  // namespace tessera
