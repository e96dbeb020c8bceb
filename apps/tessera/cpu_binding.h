#pragma once

#include <tessera/launch/run_options.h>

#include <string>
#include <vector>

namespace tessera::app {

/// Divides the processors `allowed` among ranks. kCore: each rank gets equally many whole cores, neighbours together.
/// kNuma: ranks fill the NUMA nodes evenly, and each gets all processors of its node.
/// `synthetic` describes an imagined machine, as hwloc writes them; empty: this machine.
/// Throws ConfigError when there are more ranks than cores to bind to, InternalError when hwloc fails.
std::vector<std::vector<int>> plan_binding_on(const std::string& synthetic, Binding binding, int num_ranks,
                                              const std::vector<int>& allowed);

/// The same on this machine.
std::vector<std::vector<int>> plan_binding(Binding binding, int num_ranks, const std::vector<int>& allowed);

}  // namespace tessera::app
