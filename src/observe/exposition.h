#pragma once

#include <tessera/observe/step_record.h>

#include <cstdint>
#include <string>

namespace tessera::observe {

/// The figures of a run as Prometheus reads them (text exposition format 0.0.4).
/// `summary` may be null: before the first step. `num_tokens` are those of the whole run.
std::string exposition(const StepSummary* summary, const RunDescription& run, std::int64_t num_tokens);

}  // namespace tessera::observe
