#pragma once

#include <tessera/core/descriptor.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace tessera::store {

/// Throws ConfigError, saying what was found and the command that mends it, unless what is open belongs to the
/// effective user and is closed to its group and all others.
void require_private(const struct stat& found, const std::filesystem::path& path);

/// The folder, made when missing and opened. A symbolic link is refused: whoever made it chose where it leads.
/// Throws ConfigError when it is not private, StorageError when it cannot be made.
Descriptor open_private_folder(const std::filesystem::path& path);

/// What the file holds, which must be a private regular file of at most `max_bytes`, else ConfigError.
/// The descriptor is that of the open file; the path is for messages.
std::string read_private_file(const Descriptor& file, const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace tessera::store
