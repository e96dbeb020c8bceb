#include "comm/algorithms/hierarchical_engine.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <map>
#include <utility>

#include "comm/algorithms/message_engine.h"
#include "comm/group.h"

namespace tessera::comm {
namespace {

at::Tensor tensor_of(const Buffer& buffer) {
  return at::from_blob(buffer.data, {buffer.count}, at::TensorOptions().dtype(buffer.dtype));
}

std::vector<std::vector<int>> members_by_node(const Group& group) {
  std::map<int, std::size_t> index_of_node;
  std::vector<std::vector<int>> members;
  for (int r = 0; r < group.size(); ++r) {
    const int node = group.world().topology.node_of(group.ranks()[static_cast<std::size_t>(r)]);
    const auto [entry, added] = index_of_node.emplace(node, members.size());
    if (added) members.emplace_back();
    members[entry->second].push_back(r);
  }
  return members;
}

Communicator subgroup(Group& group, const std::vector<int>& members, const std::string& name) {
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(group.ranks()[static_cast<std::size_t>(member)]);
  std::string child = group.child_name(ranks, name);
  return Communicator(std::make_shared<Group>(group.shared_world(), std::move(child), std::move(ranks)));
}

const std::vector<int>& own_node(const std::vector<std::vector<int>>& members, int rank) {
  for (const auto& node : members) {
    if (std::find(node.begin(), node.end(), rank) != node.end()) return node;
  }
  throw InternalError("a rank without a node");
}

[[noreturn]] void not_hierarchical(const char* operation) {
  throw InternalError(std::string(operation) + " has no hierarchical form and is routed to the backend itself");
}

}  // namespace

HierarchicalEngine::HierarchicalEngine(Group& group)
    : size_(group.size()),
      moves_data_(group.world().connector->moves_data()),
      places_(static_cast<std::size_t>(group.size())),
      members_(members_by_node(group)),
      local_(subgroup(group, own_node(members_, group.rank()), "node")) {
  std::vector<int> firsts;
  for (std::size_t node = 0; node < members_.size(); ++node) {
    firsts.push_back(members_[node].front());
    for (std::size_t i = 0; i < members_[node].size(); ++i) {
      places_[static_cast<std::size_t>(members_[node][i])] = {static_cast<int>(node), static_cast<int>(i)};
    }
  }
  node_ = places_[static_cast<std::size_t>(group.rank())].node;
  if (leads()) leaders_ = subgroup(group, firsts, "leaders");
}

Communicator HierarchicalEngine::local(Deadline deadline) const {
  return local_.with_strategy(CommunicationStrategy::kBackend)
      .with_timeout(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

Communicator HierarchicalEngine::leaders(Deadline deadline) const {
  return leaders_->with_strategy(CommunicationStrategy::kBackend)
      .with_timeout(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

Counts HierarchicalEngine::node_counts(const Counts& counts) const {
  Counts sums(members_.size(), 0);
  for (std::size_t r = 0; r < counts.size(); ++r) sums[static_cast<std::size_t>(places_[r].node)] += counts[r];
  return sums;
}

Counts HierarchicalEngine::local_counts(const Counts& counts) const {
  Counts own;
  for (const int member : members_[static_cast<std::size_t>(node_)]) {
    own.push_back(counts[static_cast<std::size_t>(member)]);
  }
  return own;
}

void HierarchicalEngine::average(Buffer data, ReduceOp op) const {
  if (moves_data_) finish_average(data, op, size_);
}

void HierarchicalEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const ReduceOp part = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  const at::Tensor tensor = tensor_of(data);
  local(deadline).reduce(tensor, 0, part);
  if (leads()) {
    leaders(deadline).all_reduce(tensor, part);
    average(data, op);
  }
  local(deadline).broadcast(tensor, 0);
}

void HierarchicalEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) {
  const at::Tensor of_node = local(deadline).gather(tensor_of(piece), 0, 0, local_counts(counts));
  if (leads()) {
    const Counts sums = node_counts(counts);
    const at::Tensor by_node = leaders(deadline).all_gather(of_node, 0, sums);
    // Nodes follow each other in `by_node`, ranks in `whole`.
    const auto offsets = offsets_of(counts);
    std::int64_t begin = 0;
    for (const auto& node : members_) {
      for (const int member : node) {
        const auto m = static_cast<std::size_t>(member);
        tensor_of(whole.slice(offsets[m], counts[m])).copy_(by_node.narrow(0, begin, counts[m]));
        begin += counts[m];
      }
    }
  }
  local(deadline).broadcast(tensor_of(whole), 0);
}

void HierarchicalEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op,
                                        Deadline deadline) {
  const ReduceOp part = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  at::Tensor sum = leads() ? tensor_of(whole).clone() : tensor_of(whole);
  local(deadline).reduce(sum, 0, part);
  at::Tensor of_node = sum;
  if (leads()) {
    std::vector<at::Tensor> by_node;
    const auto offsets = offsets_of(counts);
    for (const auto& node : members_) {
      for (const int member : node) {
        const auto m = static_cast<std::size_t>(member);
        by_node.push_back(sum.narrow(0, offsets[m], counts[m]));
      }
    }
    of_node = leaders(deadline).reduce_scatter(at::cat(by_node), part, 0, node_counts(counts));
  }
  const Counts own = local_counts(counts);
  const std::int64_t total = offsets_of(own).back();
  const at::Tensor like = leads() ? of_node : at::empty({1}, sum.options()).expand({total});
  tensor_of(piece).copy_(local(deadline).scatter(like, 0, 0, own));
  average(piece, op);
}

void HierarchicalEngine::broadcast(Buffer data, int root, Deadline deadline) {
  const Place source = places_[static_cast<std::size_t>(root)];
  const at::Tensor tensor = tensor_of(data);
  if (node_ == source.node) local(deadline).broadcast(tensor, source.local);
  if (leads()) leaders(deadline).broadcast(tensor, source.node);
  if (node_ != source.node) local(deadline).broadcast(tensor, 0);
}

void HierarchicalEngine::reduce(Buffer data, int root, ReduceOp op, Deadline deadline) {
  const ReduceOp part = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  const Place target = places_[static_cast<std::size_t>(root)];
  const bool is_root = node_ == target.node && local_.rank() == target.local;
  at::Tensor sum = leads() && !is_root ? tensor_of(data).clone() : tensor_of(data);
  local(deadline).reduce(sum, 0, part);
  if (leads()) leaders(deadline).reduce(sum, target.node, part);
  if (node_ == target.node && target.local != 0) {
    if (leads()) local(deadline).send(sum, target.local);
    if (is_root) local(deadline).recv(sum, 0);
  }
  if (is_root) average(data, op);
}

void HierarchicalEngine::gather(Buffer, Buffer, const Counts&, int, Deadline) { not_hierarchical("gather"); }
void HierarchicalEngine::scatter(Buffer, Buffer, const Counts&, int, Deadline) { not_hierarchical("scatter"); }
void HierarchicalEngine::all_to_all(Buffer, const Counts&, Buffer, const Counts&, Deadline) {
  not_hierarchical("all_to_all");
}

void HierarchicalEngine::barrier(Deadline deadline) {
  local(deadline).barrier();
  if (leads()) leaders(deadline).barrier();
  local(deadline).barrier();
}

}  // namespace tessera::comm
