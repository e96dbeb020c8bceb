#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/store/secret.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "store/channel.h"
#include "store/frame_stream.h"

namespace tessera::store {

/// A connection to a store that has proved the secret, and to which the secret was proved.
struct Connected {
  Descriptor socket;
  std::unique_ptr<ChannelContext> context;
  std::unique_ptr<FrameStream> stream;
};

/// Tries until it succeeds. Blocks: until `deadline`, then throws CommError saying what was missing.
/// With `retry_refusals` unset, a store that refuses the secret is not asked again.
Connected connect_to_store(const std::string& address, int port, const SecretSource& secret, bool retry_refusals,
                           std::chrono::milliseconds timeout);

}  // namespace tessera::store
