#pragma once

#include <tessera/observe/observe_options.h>
#include <tessera/observe/step_record.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "observe/metrics_server.h"
#include "observe/terminal.h"

namespace tessera::observe {

/// One line, rewritten in place.
std::unique_ptr<Sink> make_progress_line(std::shared_ptr<Terminal> terminal, const RunDescription& run);

/// A line to standard error now and then: with the first step, every `every`, and with the last.
std::unique_ptr<Sink> make_plain_progress(std::shared_ptr<Terminal> terminal, const RunDescription& run,
                                          std::chrono::milliseconds every);

/// One object, without the end of the line. Numbers that are not finite become null, since JSON has none.
std::string json_line(const StepSummary& summary);

/// Appends one JSON object for each summary, and before the first one an object with the run's config.
/// Throws StorageError when the file cannot be made.
std::unique_ptr<Sink> make_json_lines(const std::filesystem::path& path, const RunDescription& run);

/// The figures of a run as Prometheus reads them (text exposition format 0.0.4).
/// `summary` may be null: before the first step. `num_tokens` are those of the whole run.
std::string exposition(const StepSummary* summary, const RunDescription& run, std::int64_t num_tokens);

/// A sink, and how often it gets a summary.
struct SinkPlan {
  std::string name;  ///< for messages
  std::unique_ptr<Sink> sink;
  std::int64_t every = 1;  ///< records in one summary
};

/// What the options ask for on this rank.
struct SinkSet {
  std::vector<SinkPlan> sinks;
  std::unique_ptr<MetricsServer> server;  ///< null when there is none
};

/// Throws ConfigError with every fault of the options.
void check_options(const ObserveOptions& options);

/// Throws StorageError for files that cannot be created, CommError for an address that cannot be bound.
SinkSet make_sinks(const ObserveOptions& options, const RunDescription& run, const std::shared_ptr<Terminal>& terminal);

}  // namespace tessera::observe
