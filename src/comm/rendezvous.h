#pragma once

#include <tessera/comm/topology.h>
#include <tessera/store/client.h>
#include <tessera/store/secret.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/launch_environment.h"

namespace tessera::comm {

/// Where the processes of a job meet.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;       ///< of this generation; keeps what this process hosts alive
  std::shared_ptr<store::StoreClient> client;  ///< of the job's store; null in a job of one
  std::string prefix;                          ///< of this generation's keys in it
  bool rank_zero_hosts = false;                ///< the store; otherwise the launcher does
  std::string local_address;                   ///< of this process, as the others reach it
  Topology topology = Topology::blocks(1, 1);
};

/// `secret` is the one that the job was given, if any; `silence` is how long the store may send nothing: see
/// reach_job_store().
/// Collective: over the job. Blocks: until all processes have come, at most `timeout`.
/// Throws CommError saying how many are missing.
Rendezvous meet(const LaunchEnvironment& launch, const std::optional<store::Secret>& secret,
                std::chrono::milliseconds timeout, std::chrono::milliseconds silence);

}  // namespace tessera::comm
