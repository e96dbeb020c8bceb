#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "checkpoint/kernels.h"

static_assert(XXH_VERSION_NUMBER >= 800, "before 0.8.0 XXH3 gave other numbers");

namespace tessera::checkpoints {
namespace {

std::uint64_t checksum(const void* data, std::size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

void add_to_checksum(void* state, const void* data, std::size_t num_bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, num_bytes);
}

void copy(void* to, const void* from, std::size_t num_bytes) { std::memcpy(to, from, num_bytes); }

}  // namespace

const Kernels kPortableKernels{checksum, add_to_checksum, copy};

}  // namespace tessera::checkpoints
