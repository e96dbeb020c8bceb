#include "checkpoint/direct_alignment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

namespace tessera::checkpoints {

std::size_t direct_alignment(int file) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  struct stat found{};
  if (fstat(file, &found) != 0 || found.st_blksize <= 0) return page;
  const auto block = std::bit_ceil(static_cast<std::size_t>(found.st_blksize));
  return std::max(page, std::min(block, kMostAlignment));  // file systems of networks name what they like to transfer
}

}  // namespace tessera::checkpoints
