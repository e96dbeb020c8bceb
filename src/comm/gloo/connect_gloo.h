#pragma once

#include <string>

#include "comm/connection.h"

namespace tessera::comm {

/// `host` is the address or the name of the interface to bind to; empty leaves the choice to Gloo.
Connection connect_gloo(const ConnectRequest& request, const std::string& host);

/// The bare `c10d::ProcessGroupGloo` below a backend that `connect_gloo` made: the peer that we measure ourselves
/// against.
c10::intrusive_ptr<c10d::Backend> bare_gloo(const c10::intrusive_ptr<c10d::Backend>& ours);

}  // namespace tessera::comm
