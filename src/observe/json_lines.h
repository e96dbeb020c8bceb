#pragma once

#include <tessera/observe/sink.h>

#include <filesystem>
#include <memory>
#include <string>

namespace tessera::observe {

/// One object, without the end of the line. What is not a finite number is null: JSON has no others.
std::string json_line(const StepSummary& summary);

/// Appends a JSON object a summary, and before the first one an object with the run's config.
/// Throws StorageError when the file cannot be made.
std::unique_ptr<Sink> make_json_lines(const std::filesystem::path& path, const RunDescription& run);

}  // namespace tessera::observe
