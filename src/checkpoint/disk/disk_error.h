#pragma once

#include <tessera/disk/disk_error.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::checkpoints {

/// As disk::disk_error(), with what makes a checkpoint need less room.
inline StorageError disk_error(const std::filesystem::path& path, const std::string& what, int number,
                               std::uint64_t num_bytes = 0) {
  return disk::disk_error(path, what, number, num_bytes, "keep fewer steps");
}

}  // namespace tessera::checkpoints
