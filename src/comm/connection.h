#pragma once

#include <tessera/comm/transport.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace tessera::comm
