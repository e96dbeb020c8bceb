#pragma once

#include <tessera/comm/strategy.h>
#include <tessera/comm/topology.h>
#include <tessera/comm/transport.h>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/engine/collective_engine.h"
#include "comm/host/host_segment.h"

namespace tessera::comm {

struct HostGroup;

/// A group to connect.
struct ConnectRequest {
  std::string group;  ///< its name, unique in the job
  int rank = 0;       ///< of this process in the group
  int size = 1;
  int num_ranks_on_host = 1;              ///< of the whole job, members or not
  std::vector<int> world_ranks;           ///< of the members, in group order
  c10::intrusive_ptr<c10d::Store> store;  ///< private to the group
  std::chrono::milliseconds timeout{30000};
};

/// A connected group.
struct Connection {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<Transport> transport;
  /// Of members that share memory, else null.
  std::shared_ptr<HostGroup> host_group;
  /// Whether peers reach this memory without staging.
  std::function<bool(const void* data, std::size_t num_bytes)> is_zero_copy;
};

/// How the groups of one world are connected.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Connection connect(const ConnectRequest& request) = 0;
  /// The same ranks, for tensors on the devices of one kind. Throws ConfigError where nothing carries them.
  virtual c10::intrusive_ptr<c10d::Backend> connect_device(const ConnectRequest& request, c10::Device device);
  /// False where calls are only counted and tensors must keep their values.
  virtual bool moves_data() const { return true; }
  /// The ring or the tree on the messages of a connected group.
  virtual std::shared_ptr<CollectiveEngine> message_engine(CommunicationStrategy strategy,
                                                           const ConnectRequest& request, const Connection& connection);
};

/// Groups of real processes, on the backend that the options name.
class ProcessConnector : public Connector {
 public:
  struct Settings {
    std::string backend;  ///< "auto", "shm", "gloo", "mpi", "nccl" or "custom"
    std::string interface;
    TransportFactory custom;
    Topology topology = Topology::blocks(1, 1);
    int rank = 0;
    c10::intrusive_ptr<c10d::Store> store;  ///< of the job
  };
  /// Throws ConfigError for a backend that there is not.
  explicit ProcessConnector(Settings settings);

  Connection connect(const ConnectRequest& request) override;

 private:
  std::string backend_for(const ConnectRequest& request) const;
  Connection connect_to_segment(const ConnectRequest& request);
  Connection connect_custom(const ConnectRequest& request) const;
  bool on_one_node(const ConnectRequest& request) const;

  Settings settings_;
  std::mutex mutex_;
  std::shared_ptr<HostSegment> segment_;
};

}  // namespace tessera::comm
