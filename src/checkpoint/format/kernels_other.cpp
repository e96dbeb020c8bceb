#include "checkpoint/format/kernels.h"

namespace tessera::checkpoints {

const Kernels& best_kernels() { return kPortableKernels; }

}  // namespace tessera::checkpoints
