#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "comm/engine/engine_backend.h"
#include "comm/group.h"

namespace tessera {

Communicator::Communicator(std::shared_ptr<Group> group)
    : Communicator(group, Settings{group->world().timeout, group->world().strategy}) {}

Communicator::Communicator(std::shared_ptr<Group> group, Settings settings)
    : group_(std::move(group)), settings_(settings) {}

int Communicator::rank() const { return group_->rank(); }
int Communicator::size() const { return group_->size(); }
int Communicator::world_rank() const { return group_->world().rank; }
const std::string& Communicator::name() const { return group_->name(); }
std::string Communicator::backend() const { return group_->connection().backend->getBackendName(); }
std::chrono::milliseconds Communicator::timeout() const { return settings_.timeout; }
CommunicationStrategy Communicator::strategy() const { return settings_.strategy; }

int Communicator::world_rank_of(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    throw ConfigError("group " + name() + " has ranks 0 to " + std::to_string(size() - 1) + ", not " +
                      std::to_string(group_rank));
  }
  return group_->ranks()[static_cast<std::size_t>(group_rank)];
}

Communicator Communicator::with_timeout(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) throw ConfigError("a timeout must be above zero");
  return {group_, Settings{timeout, settings_.strategy}};
}

Communicator Communicator::with_strategy(CommunicationStrategy strategy) const {
  return {group_, Settings{settings_.timeout, strategy}};
}

Communicator Communicator::split(const std::vector<int>& ranks, const std::string& name) const {
  if (ranks.empty()) throw ConfigError("a subgroup of " + this->name() + " needs at least one rank");
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw ConfigError("a subgroup of " + this->name() + " names a rank twice");
  }
  std::vector<int> world_ranks;
  world_ranks.reserve(ranks.size());
  for (const int rank : ranks) world_ranks.push_back(world_rank_of(rank));
  std::string child = group_->child_name(world_ranks, name);
  return {std::make_shared<Group>(group_->shared_world(), std::move(child), std::move(world_ranks)), settings_};
}

Communicator Communicator::split_by(const std::function<int(int)>& color_of, const std::string& name) const {
  const int mine = color_of(rank());
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (color_of(r) == mine) ranks.push_back(r);
  }
  return split(ranks, name);
}

at::Tensor Communicator::empty(at::IntArrayRef shape, const at::TensorOptions& options) const {
  const auto memory = options.device().is_cpu() ? allocator() : nullptr;
  if (!memory) return at::empty(shape, options);
  return comm::tensor_from(memory.get(), shape, c10::typeMetaToScalarType(options.dtype()));
}

std::shared_ptr<c10::Allocator> Communicator::allocator() const {
  c10d::Backend& backend = *group_->connection().backend;
  return backend.supportsTensorAlloc(-1) ? backend.getMemAllocator() : nullptr;
}

bool Communicator::is_zero_copy(const at::Tensor& tensor) const {
  return tensor.is_contiguous() && group_->connection().is_zero_copy(tensor.const_data_ptr(), tensor.nbytes());
}

std::vector<CallRecord> Communicator::recent_calls() const { return group_->world().recorder->recent(); }

c10::intrusive_ptr<c10d::ProcessGroup> Communicator::process_group() const { return group_->process_group(); }

}  // namespace tessera
