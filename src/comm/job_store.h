#pragma once

#include <tessera/store/client.h>
#include <tessera/store/host_secret.h>
#include <tessera/store/secret.h>
#include <tessera/store/server.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/launch_environment.h"

namespace tessera::comm {

/// The store in which the processes of a job meet, seen from one of them. Whoever hosts it keeps it alive with this.
struct JobStore {
  std::string address;
  int port = 0;
  std::unique_ptr<store::HostSecret> published;  ///< how the others find a secret that nobody was given
  std::unique_ptr<store::StoreServer> server;    ///< only where it is hosted
  std::optional<store::StoreClient> client;
};

/// Whether rank 0 hosts the job's store; otherwise the launcher does.
bool rank_zero_hosts(const LaunchEnvironment& launch);

/// Hosts the job's store or connects to it; which of the two, and where, follows from what the launcher told.
/// `secret` is what the job was given. Without one, a store on the loopback address of a single host makes its own; any
/// other is refused with ConfigError, on every rank.
/// A store that was silent for `silence` is taken for lost.
/// Collective: over the job. Blocks: until the store is reached, at most `timeout`.
std::shared_ptr<JobStore> reach_job_store(const LaunchEnvironment& launch, const std::optional<store::Secret>& secret,
                                          std::chrono::milliseconds timeout, std::chrono::milliseconds silence);

}  // namespace tessera::comm
