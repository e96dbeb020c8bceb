#pragma once

#include <tessera/flight/call_record.h>

#include "comm/group.h"

namespace tessera::comm {

/// The checked mode: compares a call with those that the other members of the group are about to make.
/// Collective: over the group, before the call itself. Throws ConfigError that names the odd one out.
void require_agreement(Group& group, const CallRecord& call);

}  // namespace tessera::comm
