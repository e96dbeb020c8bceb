#include <tessera/core/error.h>

#include "comm/nccl/connect_nccl.h"

namespace tessera::comm {

bool has_nccl() { return false; }

Connection connect_nccl(const ConnectRequest& /*request*/, int /*local_rank*/) {
  throw ConfigError(
      "this build has no NCCL; configure the `cuda` preset against the CUDA build of LibTorch, or choose "
      "another backend");
}

}  // namespace tessera::comm
