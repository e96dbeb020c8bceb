#pragma once

#include <tessera/observe/sink.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::observe {

/// A record of a TFRecord file: length, checksum of the length, data, checksum of the data.
std::string tf_record(std::string_view data);

/// TensorBoard's Event messages.
std::string version_event(double seconds);
std::string scalars_event(double seconds, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);
/// Shown as Markdown on the page "Text".
std::string text_event(double seconds, const std::string& tag, std::string_view text);

/// A new event file in `folder`, which is made when it is not there. Throws StorageError.
std::unique_ptr<Sink> make_event_file(const std::filesystem::path& folder, const RunDescription& run);

}  // namespace tessera::observe
