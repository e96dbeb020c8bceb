#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

#include <tessera/shard/named_tensors.h>

namespace tessera {

/// A line for each tensor: its name, and all that must be the same on every rank.
std::vector<std::string> described(const NamedTensors& state);

/// Collective: over `comm`. Throws ConfigError, on every rank and with one text, when the lines differ between ranks:
/// which rank, and the first line that does.
void require_same_lines(const Communicator& comm, const std::vector<std::string>& mine);

}  // namespace tessera
