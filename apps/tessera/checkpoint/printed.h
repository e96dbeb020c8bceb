#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::app {

/// "812 B", "14.2 kB", "3.10 MB", "1.40 GB"
std::string size_text(std::uint64_t num_bytes);

/// "1 file", "2 files"
std::string counted(std::size_t count, std::string_view noun);

/// A text from a file, with control characters escaped, which a terminal would act on.
std::string printable(std::string_view text);

/// Filled with spaces up to `width` columns; UTF-8 counts by its characters.
std::string padded(const std::string& text, std::size_t width);
std::size_t columns_of(std::string_view text);

}  // namespace tessera::app
