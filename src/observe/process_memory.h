#pragma once

#include <tessera/observe/step_record.h>

namespace tessera::observe {

/// Of this process, now. Takes some microseconds. Zeros where the system does not tell.
ProcessMemory process_memory();

}  // namespace tessera::observe
