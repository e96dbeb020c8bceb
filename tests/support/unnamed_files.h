#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::testing {

/// The unnamed files of this process in a folder.
inline std::vector<int> unnamed_files(const std::filesystem::path& folder) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with(folder.string() + "/") && target.ends_with(" (deleted)")) {
      found.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return found;
}

}  // namespace tessera::testing
