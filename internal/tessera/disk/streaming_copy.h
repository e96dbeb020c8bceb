#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::disk {

/// As memcpy, for bytes that are not needed soon: see Note [Copies past the caches]. They must not overlap.
void streaming_copy(std::span<const std::byte> from, std::byte* to);

/// The same, and returns the checksum of the bytes. This costs less than reading them twice.
std::uint64_t streaming_copy_and_sum(std::span<const std::byte> from, std::byte* to);

}  // namespace tessera::disk
