#pragma once

#include <cstdint>
#include <memory>

#include "property/rank_tools.h"
#include "property/user.h"

namespace tessera::testing {

/// A rank that has stages of a pipeline, alone or beside copies or shards of them. Throws std::runtime_error that says
/// kNoCutFits if the model cannot be cut into as many stages. Collective.
std::unique_ptr<User> make_on_stages(std::uint64_t seed, const Config& config, const RankGroups& groups);

constexpr const char* kNoCutFits = "no cut fits the model";

}  // namespace tessera::testing
