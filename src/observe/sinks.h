#pragma once

#include <tessera/observe/observe_options.h>
#include <tessera/observe/sink.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "observe/metrics_server.h"
#include "observe/terminal.h"

namespace tessera::observe {

/// A sink with how it is fed.
struct SinkPlan {
  std::string name;  ///< for messages
  std::unique_ptr<Sink> sink;
  std::int64_t every = 1;  ///< records a summary
};

/// What the options ask for on this rank.
struct SinkSet {
  std::vector<SinkPlan> sinks;
  std::unique_ptr<MetricsServer> server;  ///< null when there is none
};

/// Throws ConfigError with every fault of the options.
void check_options(const ObserveOptions& options);

/// Throws StorageError for files that cannot be made, CommError for an address that cannot be had.
SinkSet make_sinks(const ObserveOptions& options, const RunDescription& run, const std::shared_ptr<Terminal>& terminal);

}  // namespace tessera::observe
