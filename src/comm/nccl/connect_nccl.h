#pragma once

#include "comm/connector.h"

namespace tessera::comm {

/// Whether this build can use NCCL.
bool has_nccl();

/// Requires: a GPU for this process, chosen by `local_rank`.
Connection connect_nccl(const ConnectRequest& request, int local_rank);

}  // namespace tessera::comm
