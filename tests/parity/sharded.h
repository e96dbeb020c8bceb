#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

#include "parity/training.h"

namespace tessera::testing {

/// One name for each strategy, and for each way of using it.
const std::vector<std::string>& sharded_variants();
/// As train_distributed(), with the model in shards. The whole state, on every rank. Collective.
State train_sharded(const ParityCase& parity, const std::string& variant, const Communicator& comm);

}  // namespace tessera::testing
