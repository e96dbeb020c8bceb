#pragma once

#include <tessera/core/error.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::disk {

/// Says what the system's error `number` means for a path, and what to do about it: "PATH cannot be written: ...".
/// `what` says what could not be done. `num_bytes`: how many were to be written. When the disk is full, the message
/// states them beside the free bytes. `to_need_less`: what makes the program need fewer, "keep fewer steps".
StorageError disk_error(const std::filesystem::path& path, const std::string& what, int number,
                        std::uint64_t num_bytes = 0, const std::string& to_need_less = "");

}  // namespace tessera::disk
