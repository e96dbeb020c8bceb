#pragma once

#include <string>

namespace tessera::launch {

/// "SIGSEGV"; "signal 99" for one without a name.
std::string signal_name(int signal);

/// How a process ended, for people: "was ended by SIGSEGV (Segmentation fault)", "exited with code 3 (...)".
std::string exit_meaning(int wait_status);

}  // namespace tessera::launch
