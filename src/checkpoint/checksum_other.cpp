#include "checkpoint/checksum_kernels.h"

namespace tessera::checkpoints {

ChecksumKernel best_checksum_kernel() { return checksum_portable; }

}  // namespace tessera::checkpoints
