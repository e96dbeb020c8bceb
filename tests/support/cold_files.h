#pragma once

#include <tessera/core/descriptor.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>

namespace tessera::testing {

/// Whether the page cache can lose what is there: a file system in memory has nothing else.
inline bool is_on_disk(const std::filesystem::path& path) {
  struct statfs found{};
  return statfs(path.c_str(), &found) == 0 && found.f_type != TMPFS_MAGIC;
}

/// Takes the files of a folder out of the page cache, as after a restart.
inline void forget_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const Descriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    fsync(file.get());
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

}  // namespace tessera::testing
