#pragma once

#include <string>

#include "tessera/doctor/check.h"

namespace tessera::doctor {

/// Whether nothing fails.
bool is_ready(const Checks& checks);

/// A line each, and one that sums up.
std::string to_text(const Checks& checks);
std::string to_json(const Checks& checks);

}  // namespace tessera::doctor
