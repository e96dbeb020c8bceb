#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "disk/kernels.h"

static_assert(XXH_VERSION_NUMBER >= 800, "before 0.8.0 XXH3 gave other numbers");

namespace tessera::disk {
namespace {

std::uint64_t checksum(const void* data, std::size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

void add_to_checksum(void* state, const void* data, std::size_t num_bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, num_bytes);
}

void copy(void* to, const void* from, std::size_t num_bytes) { std::memcpy(to, from, num_bytes); }

constexpr std::size_t kSummedAtOnce = 16384;  // the innermost cache holds it twice

std::uint64_t copy_and_sum(void* destination, const void* source, std::size_t num_bytes) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  while (num_bytes > 0) {
    const std::size_t step = num_bytes < kSummedAtOnce ? num_bytes : kSummedAtOnce;
    std::memcpy(to, from, step);
    XXH3_64bits_update(&state, from, step);
    to += step;
    from += step;
    num_bytes -= step;
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace

const Kernels kPortableKernels{checksum, add_to_checksum, copy, copy_and_sum};

}  // namespace tessera::disk
