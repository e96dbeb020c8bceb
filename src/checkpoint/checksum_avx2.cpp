// Compiled for processors with AVX2 only: no other header may be included here, lest the linker take its functions.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint/checksum_kernels.h"

namespace tessera::checkpoints {

std::uint64_t checksum_avx2(const void* data, std::size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

}  // namespace tessera::checkpoints
