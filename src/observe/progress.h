#pragma once

#include <tessera/observe/sink.h>

#include <chrono>
#include <memory>

#include "observe/terminal.h"

namespace tessera::observe {

/// One line, rewritten in place.
std::unique_ptr<Sink> make_progress_line(std::shared_ptr<Terminal> terminal, const RunDescription& run);

/// A line to standard error now and then: with the first step, every `every`, and with the last.
std::unique_ptr<Sink> make_plain_progress(std::shared_ptr<Terminal> terminal, const RunDescription& run,
                                          std::chrono::milliseconds every);

}  // namespace tessera::observe
