#include <tessera/shard/buffer_sync.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace tessera {

void BufferSync::note(const std::vector<at::Tensor>& buffers) {
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.is_inference()) versions_[buffer.unsafeGetTensorImpl()] = buffer._version();
  }
}

void BufferSync::take(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
                      const std::function<bool()>& graphs_live) {
  if (comm.size() == 1 || buffers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const at::Tensor& buffer : buffers) values.push_back(buffer.detach().clone());
  broadcast_all(comm, values, root);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    // On a device the question would wait.
    const bool has_it = comm.rank() == root || (buffers[i].is_cpu() && at::equal(buffers[i], values[i]));
    if (!has_it && graphs_live && !is_quiet(buffers[i]) && graphs_live()) continue;
    if (!has_it) write(buffers[i], values[i]);
    note({buffers[i]});
  }
}

/// Note [Buffers that graphs have kept]
/// A graph refuses to go backward when something it has kept was written to since. BatchNorm's kernels write their
/// running statistics behind autograd's back, because training does not go backward through them; so a graph that lives
/// when ranks take rank 0's, of a second forward or a loss that keeps it, must not hear of that either. What a program
/// itself has written to since the last time, it hears of; so that is left alone while another graph lives.
bool BufferSync::is_quiet(const at::Tensor& buffer) const {
  const auto known = versions_.find(buffer.unsafeGetTensorImpl());
  return known != versions_.end() && !buffer.is_inference() && known->second == buffer._version();
}

void BufferSync::write(const at::Tensor& buffer, const at::Tensor& value) {
  if (!is_quiet(buffer)) {
    buffer.copy_(value);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  buffer.copy_(value);
}

}  // namespace tessera
