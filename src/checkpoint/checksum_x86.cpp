#include "checkpoint/checksum_kernels.h"

namespace tessera::checkpoints {

ChecksumKernel best_checksum_kernel() {
  if (__builtin_cpu_supports("avx512f") != 0) return checksum_avx512;
  if (__builtin_cpu_supports("avx2") != 0) return checksum_avx2;
  return checksum_portable;
}

}  // namespace tessera::checkpoints
