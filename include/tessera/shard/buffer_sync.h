#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace tessera {

/// One rank's buffers for all ranks, again and again while a model is trained.
/// Thread-safety: one thread at a time.
class BufferSync {
 public:
  /// They are the same on all ranks at this point.
  void note(const std::vector<at::Tensor>& buffers);
  /// `root`'s values; what has them already is not written to. While `graphs_live()`, asked only if it matters,
  /// nothing is written that autograd would hear of: graphs that have kept it would refuse to go backward. The next
  /// time will do. Collective: over `comm`.
  void take(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
            const std::function<bool()>& graphs_live = nullptr);

 private:
  bool is_quiet(const at::Tensor& buffer) const;
  void write(const at::Tensor& buffer, const at::Tensor& value);

  std::unordered_map<const c10::TensorImpl*, std::uint32_t> versions_;  // when they were last taken
};

}  // namespace tessera
