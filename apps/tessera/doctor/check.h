#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::doctor {

enum class Health : std::uint8_t { kOk, kWarn, kFail };

/// The result of one check.
struct Check {
  std::string name;
  Health health = Health::kOk;
  std::string found;
  std::string advice;  ///< what to change; empty where nothing has to be
};

using Checks = std::vector<Check>;

}  // namespace tessera::doctor
