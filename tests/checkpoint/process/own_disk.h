#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::testing {

/// The exit code of a process to which the system gives no namespace of its own.
inline constexpr int kNoNamespaces = 77;

/// From now on `folder` is a disk of so many bytes, for this process and what it starts. Ends the process with
/// kNoNamespaces, saying why, where the system does not allow it.
void mount_own_disk(const std::filesystem::path& folder, std::uint64_t num_bytes);

void make_read_only(const std::filesystem::path& disk, bool is_read_only);

/// Takes all room of the disk but so many bytes, with a file that is gone with this.
class Ballast {
 public:
  Ballast(const std::filesystem::path& disk, std::uint64_t num_left);
  ~Ballast();
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::testing
