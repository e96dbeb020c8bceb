#include "disk/kernels.h"

namespace tessera::disk {

const Kernels& best_kernels() { return kPortableKernels; }

}  // namespace tessera::disk
