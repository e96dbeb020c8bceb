#pragma once

#include "support/process_roles.h"

namespace tessera::testing {

void feed(const Arguments& arguments);

}  // namespace tessera::testing
