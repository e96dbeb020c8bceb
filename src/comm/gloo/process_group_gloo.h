#pragma once

#include <string>

#include "comm/connection.h"

namespace tessera::comm {

/// Makes LibTorch's Gloo process group. Its implementation is the one file that sees Gloo's declarations.
c10::intrusive_ptr<c10d::Backend> make_process_group_gloo(const ConnectRequest& request, const std::string& host);

}  // namespace tessera::comm
