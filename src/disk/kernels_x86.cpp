#include "disk/kernels.h"

namespace tessera::disk {

const Kernels& best_kernels() {
  static const Kernels& best = __builtin_cpu_supports("avx512f") != 0 ? kAvx512Kernels
                               : __builtin_cpu_supports("avx2") != 0  ? kAvx2Kernels
                                                                      : kPortableKernels;
  return best;
}

}  // namespace tessera::disk
