#include <tessera/comm/texts.h>
#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/buffer_sync.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

namespace tessera {
namespace {

constexpr std::int64_t kTogetherBytes = std::int64_t{16} << 20;

using Tensors = std::vector<at::Tensor>;

/// Tensors of one dtype and device laid one after another in the group's memory.
class FlatBuffer {
 public:
  FlatBuffer(const Communicator& comm, Tensors tensors) : tensors_(std::move(tensors)) {
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
    waiting[kind].push_back(intercept::held_part(tensor));
    waiting_bytes[kind] += static_cast<std::int64_t>(waiting[kind].back().nbytes());
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
    const FlatBuffer buffer(comm, std::move(batch));
    if (comm.rank() == root) buffer.read();
    comm.broadcast(buffer.flat(), root);
    if (comm.rank() != root) buffer.write();
  });
}

void average_all(const Communicator& comm, const Tensors& tensors) {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  for_each_batch(tensors, [&](Tensors batch) {
    const FlatBuffer buffer(comm, std::move(batch));
    buffer.read();
    comm.all_reduce(buffer.flat(), ReduceOp::kAvg);
    buffer.write();
  });
}

namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::int64_t reduced(const Communicator& comm, std::int64_t value, ReduceOp op) {
  const at::Tensor tensor = at::full({1}, value, at::kLong);
  comm.all_reduce(tensor, op);
  return tensor.item<std::int64_t>();
}

std::string first_difference(const std::vector<std::string>& mine, const std::vector<std::string>& theirs, int rank) {
  const std::string who = "rank " + std::to_string(rank);
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] != theirs[i]) return who + " has \"" + mine[i] + "\" where rank 0 has \"" + theirs[i] + "\"";
  }
  const bool more = mine.size() > theirs.size();
  return std::string("only ") + (more ? who : "rank 0") + " has \"" +
         (more ? mine[theirs.size()] : theirs[mine.size()]) + "\"";
}

}  // namespace

std::vector<std::string> described(const NamedTensors& state) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const at::Tensor& tensor = state.tensors[i];
    std::ostringstream line;
    line << state.names[i] << ": " << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
    // Elements travel in the order in which they lie in memory.
    if (!tensor.is_contiguous()) line << ", strides " << tensor.strides();
    if (!tensor.requires_grad()) line << ", without gradient";
    // Else ranks with different parts of a tensor would be treated as copies of one another.
    if (const Slice slice = global_slice(tensor); !slice.is_whole()) line << ", " << slice.text();
    lines.push_back(line.str());
  }
  return lines;
}

void require_same_lines(const Communicator& comm, const std::vector<std::string>& mine, const std::string& fail_how,
                        const std::string& advice) {
  const std::int64_t hash = Digest().add(joined(mine)).positive();
  if (reduced(comm, hash, ReduceOp::kMin) == reduced(comm, hash, ReduceOp::kMax)) return;
  const auto theirs = split_lines(broadcast_text(comm, joined(mine), 0));
  const bool differs = mine != theirs;
  const int culprit = static_cast<int>(reduced(comm, differs ? comm.rank() : comm.size(), ReduceOp::kMin));
  const std::string what =
      broadcast_text(comm, comm.rank() == culprit ? first_difference(mine, theirs, culprit) : "", culprit);
  throw ConfigError("the ranks of group " + comm.name() + " " + fail_how + ": " + what + ". " + advice);
}

void BufferSync::note(const std::vector<at::Tensor>& buffers) {
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.is_inference()) versions_[buffer.unsafeGetTensorImpl()] = buffer._version();
  }
}

void BufferSync::take(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
                      const std::function<bool()>& graphs_live) {
  take_where(comm, buffers, root,
             [&](const at::Tensor& buffer) { return !graphs_live || is_quiet(buffer) || !graphs_live(); });
}

void BufferSync::take_in_forward(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root) {
  if (comm.size() == 1) return;
  note(buffers);
  take_where(comm, buffers, root, [](const at::Tensor&) { return true; });
}

void BufferSync::take_where(const Communicator& comm, const std::vector<at::Tensor>& buffers, int root,
                            const MayWrite& may_write) {
  if (comm.size() == 1 || buffers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const at::Tensor& buffer : buffers) values.push_back(buffer.detach().clone());
  broadcast_all(comm, values, root);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    // Not compared on a device, where that would wait for the device.
    const bool has_it = comm.rank() == root || (buffers[i].is_cpu() && at::equal(buffers[i], values[i]));
    if (!has_it && !may_write(buffers[i])) continue;
    if (!has_it) write(buffers[i], values[i]);
    note({buffers[i]});
  }
}

/// Note [Buffers that graphs have kept]
/// Backward of a graph throws when a tensor that the graph saved was written to since: autograd compares version
/// counters. BatchNorm's kernels write their running statistics without changing the version counter, because training
/// computes no gradient through them. Likewise, when ranks take rank 0's buffers, a graph that is still alive (of a
/// second forward, or kept by a loss) must not see a new version. A buffer whose version has changed since the last
/// time was written by the program itself; it is written with a new version, and so not while another graph lives.
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
