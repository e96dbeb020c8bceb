#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace tessera {
namespace {

constexpr std::int64_t kTogetherBytes = std::int64_t{16} << 20;

using Tensors = std::vector<at::Tensor>;

/// Tensors of one dtype and device laid one after another in the group's memory.
class Row {
 public:
  Row(const Communicator& comm, Tensors tensors) : tensors_(std::move(tensors)) {
    std::int64_t total = 0;
    for (const auto& tensor : tensors_) total += tensor.numel();
    flat_ = comm.empty({total}, tensors_.front().options().requires_grad(false));
    std::int64_t begin = 0;
    for (const auto& tensor : tensors_) {
      places_.push_back(flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
  const at::Tensor& flat() const { return flat_; }
  void read() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) places_[i].copy_(tensors_[i]);
  }
  void write() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(places_[i]);
  }

 private:
  Tensors tensors_;
  at::Tensor flat_;
  Tensors places_;
};

/// Small ones together, so that they cost one message.
void for_each_batch(const Tensors& tensors, const std::function<void(Tensors)>& move) {
  std::map<std::pair<c10::ScalarType, std::string>, Tensors> waiting;
  std::map<std::pair<c10::ScalarType, std::string>, std::int64_t> waiting_bytes;
  for (const auto& tensor : tensors) {
    const auto kind = std::pair(tensor.scalar_type(), tensor.device().str());
    waiting[kind].push_back(tensor.detach());
    waiting_bytes[kind] += static_cast<std::int64_t>(tensor.nbytes());
    if (waiting_bytes[kind] < kTogetherBytes) continue;
    move(waiting[kind]);
    waiting.erase(kind);
    waiting_bytes.erase(kind);
  }
  for (const auto& [kind, rest] : waiting) move(rest);
}

}  // namespace

void broadcast_all(const Communicator& comm, const Tensors& tensors, int root) {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  for_each_batch(tensors, [&](Tensors batch) {
    const Row row(comm, std::move(batch));
    if (comm.rank() == root) row.read();
    comm.broadcast(row.flat(), root);
    if (comm.rank() != root) row.write();
  });
}

void average_all(const Communicator& comm, const Tensors& tensors) {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  for_each_batch(tensors, [&](Tensors batch) {
    const Row row(comm, std::move(batch));
    row.read();
    comm.all_reduce(row.flat(), ReduceOp::kAvg);
    row.write();
  });
}

}  // namespace tessera
