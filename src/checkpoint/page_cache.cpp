#include "checkpoint/page_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace tessera::checkpoints {
namespace {

/// What cachestat(2) takes and tells; headers of C libraries do not know it yet.
struct CacheRange {
  std::uint64_t offset;
  std::uint64_t num_bytes;
};
struct CacheState {
  std::uint64_t num_cached;
  std::uint64_t others[4];
};
constexpr long kCacheState = 451;  // the number of the call, the same for all processors

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

std::optional<std::uint64_t> num_cached_pages(int file, std::uint64_t offset, std::uint64_t num_bytes) {
  CacheRange range{offset, num_bytes};
  CacheState state{};
  if (syscall(kCacheState, file, &range, &state, 0) != 0) return std::nullopt;
  return state.num_cached;
}

std::uint64_t num_pages(std::uint64_t offset, std::uint64_t num_bytes) {
  const std::uint64_t page = page_bytes();
  return num_bytes == 0 ? 0 : (offset + num_bytes - 1) / page - offset / page + 1;
}

bool is_cached(void* pages, std::size_t num_bytes) {
  std::vector<unsigned char> states(num_pages(0, num_bytes));
  if (mincore(pages, num_bytes, states.data()) != 0) return false;
  return std::all_of(states.begin(), states.end(), [](unsigned char state) { return (state & 1U) != 0; });
}

}  // namespace tessera::checkpoints
