#pragma once

#include <tessera/flight/snapshot.h>

#include <nlohmann/json.hpp>

namespace tessera::flight {

/// With the `num_calls` latest calls.
nlohmann::json to_object(const Snapshot& snapshot, std::size_t num_calls);
/// Throws nlohmann::json::exception, or ConfigError, for what is not a snapshot.
Snapshot snapshot_from(const nlohmann::json& object);

}  // namespace tessera::flight
