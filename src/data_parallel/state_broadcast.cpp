#include "data_parallel/state_broadcast.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

namespace tessera::data_parallel {
namespace {

constexpr std::int64_t kTogetherBytes = std::int64_t{16} << 20;

void broadcast_together(const Communicator& comm, const std::vector<at::Tensor>& tensors, int root) {
  std::int64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.numel();
  const at::Tensor flat = comm.empty({total}, tensors.front().options().requires_grad(false));
  std::vector<at::Tensor> places;
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    places.push_back(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  const bool is_root = comm.rank() == root;
  for (std::size_t i = 0; is_root && i < tensors.size(); ++i) places[i].copy_(tensors[i]);
  comm.broadcast(flat, root);
  for (std::size_t i = 0; !is_root && i < tensors.size(); ++i) at::Tensor(tensors[i]).copy_(places[i]);
}

}  // namespace

void broadcast_all(const Communicator& comm, const std::vector<at::Tensor>& tensors, int root) {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<std::pair<c10::ScalarType, std::string>, std::vector<at::Tensor>> waiting;
  std::map<std::pair<c10::ScalarType, std::string>, std::int64_t> waiting_bytes;
  for (const auto& tensor : tensors) {
    const auto kind = std::pair(tensor.scalar_type(), tensor.device().str());
    waiting[kind].push_back(tensor.detach());
    waiting_bytes[kind] += static_cast<std::int64_t>(tensor.nbytes());
    if (waiting_bytes[kind] < kTogetherBytes) continue;
    broadcast_together(comm, waiting[kind], root);
    waiting.erase(kind);
    waiting_bytes.erase(kind);
  }
  for (const auto& [kind, rest] : waiting) broadcast_together(comm, rest, root);
}

}  // namespace tessera::data_parallel
