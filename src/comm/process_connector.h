#pragma once

#include <tessera/comm/topology.h>
#include <tessera/comm/transport.h>

#include <memory>
#include <mutex>
#include <string>

#include "comm/connector.h"
#include "comm/host/host_segment.h"

namespace tessera::comm {

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
