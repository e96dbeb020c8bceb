#pragma once

#include <tessera/comm/communicator.h>

#include <string>
#include <vector>

#include <tessera/shard/named_tensors.h>

namespace tessera {

/// A line for each tensor: its name, and its properties that must be the same on every rank.
std::vector<std::string> described(const NamedTensors& state);

/// Collective: over `comm`. Throws ConfigError, on every rank and with the same text, when the lines differ between
/// ranks. The text says that the ranks `fail_how`, which rank differs, in which line first, and ends with `advice`.
void require_same_lines(const Communicator& comm, const std::vector<std::string>& mine,
                        const std::string& fail_how = "do not distribute the same model",
                        const std::string& advice = "Build the same model with the same options on every rank");

}  // namespace tessera
