#include "offload/store/swap_files.h"

#include <tessera/core/error.h>
#include <tessera/disk/disk_error.h>
#include <tessera/disk/request_ring.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tessera::offload {
namespace {

constexpr const char* kToNeedLess = "offload less";

/// For file systems that have no unnamed files: the name lives for two system calls.
int open_and_unlink(const std::filesystem::path& folder, int flags) {
  std::string path = (folder / "tessera_offload_XXXXXX").string();
  const int file = mkostemp(path.data(), flags);
  if (file >= 0) unlink(path.c_str());
  return file;
}

int open_unnamed(const std::filesystem::path& folder, int flags) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | flags, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)) return file;
  return open_and_unlink(folder, O_CLOEXEC | flags);
}

}  // namespace

SwapFiles::SwapFiles(std::vector<std::filesystem::path> folders) : folders_(std::move(folders)) {
  if (folders_.empty()) throw ConfigError("offload: no folder is named for what lies in files: set `folders`");
  for (const auto& folder : folders_) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw disk::disk_error(folder, "cannot be made", error.value());
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): not in one
    Descriptor file(open_unnamed(folder, O_DIRECT));
    if (!file && errno == EINVAL) {  // tmpfs, for one, has no direct I/O
      is_direct_ = false;
      file = Descriptor(open_unnamed(folder, 0));
    }
    if (!file) throw disk::disk_error(folder, "cannot hold a file for what is offloaded", errno);
    alignment_ = std::max(alignment_, disk::direct_alignment(file.get()));
    files_.push_back(std::move(file));
  }
}

void SwapFiles::reserve(std::uint64_t capacity) {
  if (capacity <= capacity_) return;
  const auto of_file = [&](std::uint64_t all) {
    if (files_.size() == 1) return all;
    const std::uint64_t row = kStripeBytes * files_.size();
    return (all + row - 1) / row * kStripeBytes;
  };
  const std::uint64_t before = of_file(capacity_);
  const std::uint64_t after = of_file(capacity);
  for (std::size_t i = 0; i < files_.size() && after > before; ++i) {
    int error = 0;
    do {
      error = posix_fallocate(descriptor(i), static_cast<off_t>(before), static_cast<off_t>(after - before));
    } while (error == EINTR);
    if (error != 0)
      throw disk::disk_error(folders_[i], "cannot hold what is offloaded", error, after - before, kToNeedLess);
  }
  capacity_ = capacity;
}

SwapFiles::Place SwapFiles::place_of(std::uint64_t offset, std::size_t num_bytes) const {
  if (files_.size() == 1) return {0, offset, num_bytes};
  const std::uint64_t stripe = offset / kStripeBytes;
  const std::uint64_t within = offset % kStripeBytes;
  return {static_cast<std::size_t>(stripe % files_.size()), stripe / files_.size() * kStripeBytes + within,
          static_cast<std::size_t>(std::min<std::uint64_t>(num_bytes, kStripeBytes - within))};
}

}  // namespace tessera::offload
