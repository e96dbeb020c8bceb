#pragma once

#include <string>

#include "tessera/doctor/check.h"

namespace tessera::doctor {

/// Whether no check failed.
bool is_ready(const Checks& checks);

/// A line for each check, and a summary.
std::string to_text(const Checks& checks);
std::string to_json(const Checks& checks);

}  // namespace tessera::doctor
