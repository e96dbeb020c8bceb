#pragma once

#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace tessera::testing {

/// The anonymous file that the ranks of a node share.
struct Segment {
  ino_t inode = 0;
  std::size_t resident_bytes = 0;  ///< pages that exist
};

/// The shared segment that a process has open. Throws when it has none.
inline Segment segment_of(const std::string& process = "self") {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat status{};
    if (target.starts_with("/memfd:tessera (") && stat(entry.path().c_str(), &status) == 0) {
      return {status.st_ino, static_cast<std::size_t>(status.st_blocks) * 512};
    }
  }
  throw std::runtime_error("process " + process + " has no shared segment");
}

/// Whether any process holds that segment, as a descriptor or as a mapping. One that nobody holds has no memory.
inline bool is_held(ino_t inode) {
  const std::string in_maps = " " + std::to_string(inode) + " ";
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string id = process.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    try {
      if (segment_of(id).inode == inode) return true;
    } catch (const std::exception&) {
      // Ended meanwhile, or without a segment.
    }
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("/memfd:tessera (") != std::string::npos && line.find(in_maps) != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace tessera::testing
