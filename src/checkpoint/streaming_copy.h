#pragma once

#include <cstddef>
#include <span>

namespace tessera::checkpoints {

/// As memcpy, for bytes that nobody needs soon: see Note [Copies past the caches]. They must not overlap.
void streaming_copy(std::span<const std::byte> from, std::byte* to);

}  // namespace tessera::checkpoints
