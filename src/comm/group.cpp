#include "comm/group.h"

#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "comm/algorithms/hierarchical_engine.h"
#include "comm/engine/engine_backend.h"

namespace tessera {

Group::Group(std::shared_ptr<comm::WorldContext> world, std::string name, std::vector<int> ranks)
    : world_(std::move(world)), name_(std::move(name)), ranks_(std::move(ranks)) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), world_->rank);
  if (self == ranks_.end()) {
    throw ConfigError("rank " + std::to_string(world_->rank) + " is not a member of the group " + name_ +
                      "; only members make a group");
  }
  rank_ = static_cast<int>(self - ranks_.begin());
  recorded_as_ = world_->recorder->add_group(name_, ranks_);
  const int node = world_->topology.node_of(world_->rank);
  spans_nodes_ =
      std::any_of(ranks_.begin(), ranks_.end(), [&](int rank) { return world_->topology.node_of(rank) != node; });
}

Group::~Group() {
  const auto deadline = std::chrono::steady_clock::now() + world_->timeout;
  for (auto& message : adopted_) {
    try {
      if (message.outgoing) message.transfer->wait(deadline);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a destructor cannot report it
    }
  }
  for (const AdoptedWork& one : adopted_works_) {
    while (!one.work->isCompleted() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

const comm::ConnectRequest& Group::request() {
  if (!request_) {
    comm::ConnectRequest request;
    request.group = name_;
    request.rank = rank_;
    request.size = size();
    request.num_ranks_on_host = world_->topology.num_ranks_on(world_->topology.node_of(world_->rank));
    request.world_ranks = ranks_;
    if (world_->store) request.store = c10::make_intrusive<c10d::PrefixStore>("group/" + name_, world_->store);
    request.timeout = world_->timeout;
    request_ = std::move(request);
  }
  return *request_;
}

const comm::Connection& Group::connection() {
  const std::lock_guard lock(mutex_);
  if (connection_) return *connection_;
  try {
    connection_ = world_->connector->connect(request());
  } catch (const c10::Error& error) {
    // Mostly an error of the store. Not every caller is a Call, which would translate it.
    throw CommError("the group " + name_ + " cannot be connected: " + error.what_without_backtrace());
  }
  return *connection_;
}

c10d::Backend& Group::backend(CommunicationStrategy strategy, std::int64_t num_bytes) {
  if (strategy == CommunicationStrategy::kBackend) {
    if (!connection_) connection();
    return *connection_->backend;
  }
  if (strategy == CommunicationStrategy::kAdaptive) {
    return backend(world_->tuning.choose(connection().backend->getBackendName(), size(), spans_nodes_, num_bytes),
                   num_bytes);
  }
  auto& made = backends_[static_cast<std::size_t>(strategy)];
  if (!made) made = make_backend(strategy);
  return *made;
}

c10::intrusive_ptr<c10d::Backend> Group::make_backend(CommunicationStrategy strategy) {
  if (strategy == CommunicationStrategy::kHierarchical) {
    auto engine = std::make_shared<comm::HierarchicalEngine>(*this);
    return c10::make_intrusive<comm::EngineBackend>(rank_, size(), std::move(engine), nullptr, world_->timeout);
  }
  const comm::Connection& connected = connection();
  auto engine = world_->connector->message_engine(strategy, request(), connected);
  return c10::make_intrusive<comm::EngineBackend>(rank_, size(), std::move(engine), connected.transport,
                                                  world_->timeout);
}

c10d::Backend& Group::device_backend(const at::Device& device) {
  const std::lock_guard lock(mutex_);
  auto& made = device_backends_[device.type()];
  if (!made) made = world_->connector->connect_device(request(), device);
  return *made;
}

namespace {

c10d::ProcessGroup::BackendType type_of(const c10d::Backend& backend) {
  if (backend.getBackendName() == "gloo") return c10d::ProcessGroup::BackendType::GLOO;
  if (backend.getBackendName() == "nccl") return c10d::ProcessGroup::BackendType::NCCL;
  return c10d::ProcessGroup::BackendType::CUSTOM;
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> Group::process_group(const at::Device& device) {
  const comm::Connection& connected = connection();
  if (!device.is_cpu()) device_backend(device);
  const std::lock_guard lock(mutex_);
  if (!process_group_) {
    c10::intrusive_ptr<c10d::Store> store = request().store;
    if (!store) store = c10::make_intrusive<c10d::HashStore>();
    process_group_ = c10::make_intrusive<c10d::ProcessGroup>(store, rank_, size());
    process_group_->setBackend(c10::DeviceType::CPU, type_of(*connected.backend), connected.backend);
    process_group_->setDefaultBackend(type_of(*connected.backend));
    process_group_->setGroupName(name_);
  }
  if (!device.is_cpu()) {
    const auto& backend = device_backends_.at(device.type());
    // c10d keeps one backend of each type, and takes the CPU's for this device too if it has the same type.
    const bool is_of_a_known_type = type_of(*backend) != c10d::ProcessGroup::BackendType::CUSTOM;
    const auto type = is_of_a_known_type ? type_of(*backend) : c10d::ProcessGroup::BackendType::UCC;
    process_group_->setBackend(device.type(), type, backend);
  }
  return process_group_;
}

void Group::adopt(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> kept) {
  const std::lock_guard lock(mutex_);
  std::erase_if(adopted_works_, [](const AdoptedWork& one) { return one.work->isCompleted(); });
  adopted_works_.push_back({std::move(kept), std::move(work)});
}

void Group::adopt(std::unique_ptr<Transfer> transfer, std::vector<at::Tensor> kept, bool outgoing) {
  const std::lock_guard lock(mutex_);
  std::erase_if(adopted_, [](const Adopted& message) {
    try {
      return message.transfer->test();
    } catch (const std::exception&) {
      return true;  // it failed, and nobody asks any more: this is called by a destructor
    }
  });
  adopted_.push_back({std::move(kept), std::move(transfer), outgoing});
  connection_->transport->progress_in_background();
}

std::string Group::child_name(const std::vector<int>& world_ranks, const std::string& name) {
  // Only the members take part, so the name must follow from what all of them pass: the ranks, the name, and the number
  // of earlier calls with both.
  std::string key;
  for (const int rank : world_ranks) key += std::to_string(rank) + ",";
  key.pop_back();
  if (key.size() > 64) {
    key = key.substr(0, 48) + "...(" + std::to_string(world_ranks.size()) + ":" +
          std::to_string(std::hash<std::string>()(key)) + ")";
  }
  const std::lock_guard lock(mutex_);
  const int count = ++children_[key + "/" + name];
  std::string full = name_ + "/" + (name.empty() ? "" : name) + "[" + key + "]";
  return count == 1 ? full : full + "#" + std::to_string(count);
}

}  // namespace tessera
