#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace tessera {

/// Copies one rank's buffers to all ranks, repeatedly while a model is trained.
/// Thread-safety: one thread at a time.
class BufferSync {
 public:
  /// Notes that these buffers are the same on all ranks at this point.
  void note(const std::vector<at::Tensor>& buffers);
  /// Every rank takes `root`'s values. A buffer that has them already is not written. If `graphs_live()`, which is
  /// called only if it matters, no write is made that changes a version counter: backward of a graph that saved the
  /// buffer would throw. Such a buffer is left to the next call. Collective: over `comm`.
  void take(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
            const std::function<bool()>& graphs_live = nullptr);
  /// The same when a forward has begun. It may have used a buffer already, and its graph must stay valid: no version
  /// counter changes. That of a graph from before has changed, if the program has written to the buffer.
  void take_in_forward(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root);

 private:
  using MayWrite = std::function<bool(const at::Tensor& buffer)>;
  void take_where(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
                  const MayWrite& may_write);
  bool is_quiet(const at::Tensor& buffer) const;
  void write(const at::Tensor& buffer, const at::Tensor& value);

  std::unordered_map<const c10::TensorImpl*, std::uint32_t> versions_;  // when they were last taken
};

}  // namespace tessera
