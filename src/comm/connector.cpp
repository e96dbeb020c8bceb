#include "comm/connector.h"

#include <tessera/comm/device_backends.h>
#include <tessera/core/error.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "comm/algorithms/ring_engine.h"
#include "comm/algorithms/tree_engine.h"
#include "comm/engine/collective_engine.h"
#include "comm/engine/engine_backend.h"
#include "comm/gloo/gloo_backend.h"
#include "comm/host/connect_host.h"
#include "comm/mpi/mpi_runtime.h"

namespace tessera::comm {

c10::intrusive_ptr<c10d::Backend> Connector::connect_device(const ConnectRequest& request, c10::Device device) {
  ConnectRequest on_cpu = request;
  on_cpu.group += "/" + c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (request.store) on_cpu.store = c10::make_intrusive<c10d::PrefixStore>(on_cpu.group, request.store);
  DeviceGroup group;
  group.name = on_cpu.group;
  group.rank = request.rank;
  group.size = request.size;
  group.device = device;
  group.store = on_cpu.store;
  group.timeout = request.timeout;
  group.connect_cpu = [this, on_cpu] { return connect(on_cpu).backend; };
  return comm::connect_device(group);
}

std::shared_ptr<CollectiveEngine> Connector::message_engine(CommunicationStrategy strategy,
                                                            const ConnectRequest& request,
                                                            const Connection& connection) {
  if (!connection.transport) {
    throw ConfigError("the strategy " + std::string(to_string(strategy)) + " needs CPU messages, which the backend " +
                      connection.backend->getBackendName() + " does not carry; use the strategy allreduce");
  }
  if (strategy == CommunicationStrategy::kRing) {
    return std::make_shared<RingEngine>(connection.transport, request.rank, request.size, kRingChannel);
  }
  return std::make_shared<TreeEngine>(connection.transport, request.rank, request.size, kTreeChannel);
}

ProcessConnector::ProcessConnector(Settings settings) : settings_(std::move(settings)) {
  constexpr std::array<const char*, 6> kBackends = {"auto", "shm", "gloo", "mpi", "nccl", "custom"};
  if (std::find(kBackends.begin(), kBackends.end(), settings_.backend) == kBackends.end()) {
    throw ConfigError("there is no backend \"" + settings_.backend + "\"; choose auto, shm, gloo, mpi, nccl or custom");
  }
  if ((settings_.backend == "custom") != static_cast<bool>(settings_.custom)) {
    throw ConfigError("the backend \"custom\" and a transport factory go together: give both or neither");
  }
}

bool ProcessConnector::on_one_node(const ConnectRequest& request) const {
  return std::all_of(request.world_ranks.begin(), request.world_ranks.end(),
                     [&](int rank) { return settings_.topology.same_node(rank, settings_.rank); });
}

std::string ProcessConnector::backend_for(const ConnectRequest& request) const {
  // NCCL carries what is on devices; tensors of the CPU take the way that they take beside it.
  if (settings_.backend != "auto" && settings_.backend != "nccl") return settings_.backend;
  return on_one_node(request) ? "shm" : "gloo";
}

Connection ProcessConnector::connect(const ConnectRequest& request) {
  const std::string backend = backend_for(request);
  if (backend == "gloo") return connect_gloo(request, settings_.interface);
  if (backend == "mpi") return connect_mpi(request);
  if (backend == "custom") return connect_custom(request);
  if (request.size == 1) return connect_alone(request, "shm");
  return connect_to_segment(request);
}

Connection ProcessConnector::connect_to_segment(const ConnectRequest& request) {
  if (!on_one_node(request)) {
    throw ConfigError("the backend shm reaches one node, but group " + request.group +
                      " spans several; use \"auto\", \"gloo\" or \"mpi\"");
  }
  const Topology& topology = settings_.topology;
  const int node = topology.node_of(settings_.rank);
  std::shared_ptr<HostSegment> segment;
  {
    const std::lock_guard lock(mutex_);
    if (!segment_) {
      segment_ = HostSegment::attach(*settings_.store, node, topology.local_rank_of(settings_.rank),
                                     topology.num_ranks_on(node));
    }
    segment = segment_;
  }
  std::vector<int> local_ranks;
  for (const int rank : request.world_ranks) local_ranks.push_back(topology.local_rank_of(rank));
  return connect_shm(request, std::move(segment), local_ranks);
}

Connection ProcessConnector::connect_custom(const ConnectRequest& request) const {
  GroupSpec spec;
  spec.name = request.group;
  spec.rank = request.rank;
  spec.size = request.size;
  spec.world_ranks = request.world_ranks;
  spec.set = [store = request.store](const std::string& key, const std::string& value) {
    store->set("custom/" + key, value);
  };
  spec.get = [store = request.store](const std::string& key) { return store->get_to_str("custom/" + key); };
  Connection connection;
  connection.transport = settings_.custom(spec);
  if (!connection.transport) throw ConfigError("the transport factory returned nothing for group " + request.group);
  connection.backend = c10::make_intrusive<EngineBackend>(
      request.rank, request.size,
      std::make_shared<RingEngine>(connection.transport, request.rank, request.size, kBackendChannel),
      connection.transport, request.timeout);
  connection.is_zero_copy = [](const void*, std::size_t) { return false; };
  return connection;
}

}  // namespace tessera::comm
