#pragma once

#include <tessera/comm/world.h>

#include <memory>

#include "comm/launch_environment.h"
#include "comm/rendezvous.h"
#include "comm/watch/watch.h"

namespace tessera::comm {

/// Begins to look after the ranks that have just met; nothing for a job of one, or when `options` turn it off.
/// Collective: over the job. To be called by the thread that trains.
std::unique_ptr<Watch> start_watch(const WorldOptions& options, const LaunchEnvironment& launch,
                                   const Rendezvous& rendezvous, flight::Recorder& recorder);

}  // namespace tessera::comm
