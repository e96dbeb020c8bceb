#pragma once

#include <string>

#include "comm/connection.h"

namespace tessera::comm {

/// `host` is the address or the name of the interface to bind to; empty leaves the choice to Gloo.
Connection connect_gloo(const ConnectRequest& request, const std::string& host);

/// Bare `c10d::ProcessGroupGloo`, as LibTorch makes it: the peer that we measure ourselves against.
c10::intrusive_ptr<c10d::Backend> bare_gloo(const ConnectRequest& request, const std::string& host);

}  // namespace tessera::comm
