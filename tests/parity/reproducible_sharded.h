#pragma once

#include <tessera/comm/communicator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "parity/reproducible.h"

namespace tessera::testing {

/// One name for each way to shard.
const std::vector<std::string>& reproducible_variants();

/// As train_reproducibly(), with the model in shards; a rank also sleeps before parameters are gathered. Collective.
std::uint64_t train_reproducibly_sharded(const Communicator& comm, int num_steps, const std::string& variant,
                                         const Disturbance& disturbance = {});

}  // namespace tessera::testing
