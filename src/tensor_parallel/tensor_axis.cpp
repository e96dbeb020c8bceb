#include "tensor_parallel/tensor_axis.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/kept_error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::tp {

/// By the edge that they lead to. An entry holds its edge's node, so a node that is listed and alive is not another one
/// at the same address.
struct TensorAxis::Entries {
  using Weak = c10::weak_intrusive_ptr<torch::autograd::Node>;
  std::map<std::pair<const torch::autograd::Node*, std::uint32_t>, Weak> nodes;
};

namespace {

/// Of the bits of a tensor: equal tensors have equal ones, others differ with all but certainty.
std::int64_t digest_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().clone(at::MemoryFormat::Contiguous).cpu();
  const auto* const data = static_cast<const std::uint8_t*>(bytes.const_data_ptr());
  const std::size_t num_bytes = bytes.nbytes();
  std::uint64_t digest = 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i < num_bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i, std::min(sizeof(word), num_bytes - i));
    digest = (digest ^ word) * 0xff51afd7ed558ccd;
    digest ^= digest >> 32;
  }
  return static_cast<std::int64_t>(digest);
}

}  // namespace

TensorAxis::TensorAxis(Communicator comm, bool strict, std::int64_t num_checked_inputs)
    : comm_(std::move(comm)),
      size_(comm_.size()),
      rank_(comm_.rank()),
      strict_(strict),
      num_unchecked_(num_checked_inputs),
      entries_(std::make_shared<Entries>()) {}

const Site* TensorAxis::site(std::string_view op, const std::string* parameter) {
  Site wanted{std::string(op), *parameter};
  const std::lock_guard lock(mutex_);
  Site*& site = sites_[wanted];
  if (!site) {
    site_objects_.push_back(std::make_unique<Site>(std::move(wanted)));
    site = site_objects_.back().get();
  }
  return site;
}

const std::string* TensorAxis::parameter(const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto& held = parameters_[name];
  if (!held) held = std::make_unique<std::string>(name);
  return held.get();
}

namespace {

std::atomic<int>& num_held_of_process() {
  static std::atomic<int> number{0};
  return number;
}

}  // namespace

bool TensorAxis::is_any_held() { return num_held_of_process().load(std::memory_order_relaxed) > 0; }

void TensorAxis::hold_whole(const std::string* parameter) {
  const std::lock_guard lock(mutex_);
  held_.insert(parameter);
  ++num_held_of_process();
}

void TensorAxis::let_go(const std::string* parameter) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(parameter);
  if (found == held_.end()) return;
  held_.erase(found);
  --num_held_of_process();
}

void TensorAxis::require_not_held(const std::string* parameter, std::string_view op) const {
  const std::lock_guard lock(mutex_);
  if (held_.contains(parameter)) refuse_held(std::string(op) + " of a tensor that was cut with " + *parameter);
}

void TensorAxis::require_none_held(std::string_view what) const {
  if (is_any_held() && is_held()) refuse_held(std::string(what));
}

bool TensorAxis::is_held() const {
  const std::lock_guard lock(mutex_);
  return !held_.empty();
}

void TensorAxis::refuse_held(const std::string& what) const {
  throw ConfigError(what + " while gather() holds a model whole that tensor parallelism cuts (rank " +
                    std::to_string(comm_.world_rank()) + "): use what is whole, or end gather() first");
}

void TensorAxis::all_reduce(const at::Tensor& tensor, ReduceOp op, Transfer transfer, const Site* site) {
  if (size_ == 1) return;
  intercept::raise_kept_errors();
  comm_.all_reduce(tensor, op);
  log(transfer, site, static_cast<std::int64_t>(tensor.nbytes()));
}

Work TensorAxis::all_reduce_async(const at::Tensor& tensor, Transfer transfer, const Site* site) {
  intercept::raise_kept_errors();
  log(transfer, site, static_cast<std::int64_t>(tensor.nbytes()));
  return comm_.all_reduce_async(tensor);
}

void TensorAxis::log(Transfer transfer, const Site* site, std::int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  Traffic& traffic = traffic_[{transfer, site}];
  ++traffic.num_calls;
  traffic.num_bytes += num_bytes;
}

bool TensorAxis::log_gathered(const Site* site) {
  const std::lock_guard lock(mutex_);
  return gathered_.emplace(site, true).second;
}

std::vector<TensorAxis::Entry> TensorAxis::take_log() {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [key, traffic] : traffic_) {
    entries.push_back({key.first, *key.second, traffic, !gathered_.contains(key.second)});
  }
  traffic_.clear();
  return entries;
}

void TensorAxis::check_same(const at::Tensor& whole, const Site* site) {
  if (size_ == 1 || num_unchecked_ <= 0) return;
  --num_unchecked_;
  intercept::raise_kept_errors();
  const at::Tensor digests = comm_.all_gather(at::full({1}, digest_of(whole), at::kLong));
  const auto* const all = digests.const_data_ptr<std::int64_t>();
  const auto* const other = std::find_if(all, all + size_, [&](std::int64_t digest) { return digest != all[0]; });
  if (other == all + size_) return;
  throw ConfigError("the ranks of tensor parallelism compute with different numbers: an input of " + site->op +
                    " (with " + site->parameter + ") differs between rank " + std::to_string(comm_.world_rank_of(0)) +
                    " and rank " + std::to_string(comm_.world_rank_of(static_cast<int>(other - all))) +
                    ". All ranks of this axis need the same batch, the same seed and the same weights");
}

TensorAxis::NodePtr TensorAxis::find_entry(const torch::autograd::Node* node, std::uint32_t input) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_->nodes.find({node, input});
  return found == entries_->nodes.end() ? NodePtr() : found->second.lock();
}

void TensorAxis::remember_entry(const torch::autograd::Node* node, std::uint32_t input, const NodePtr& entry) {
  constexpr std::size_t kMany = 256;
  const std::lock_guard lock(mutex_);
  if (entries_->nodes.size() >= kMany) {
    std::erase_if(entries_->nodes, [](const auto& item) { return item.second.expired(); });
  }
  entries_->nodes.insert_or_assign({node, input}, Entries::Weak(entry));
}

}  // namespace tessera::tp
