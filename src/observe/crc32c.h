#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::observe {

/// The checksum with Castagnoli's polynomial, as RFC 3720 defines it.
std::uint32_t crc32c(std::string_view bytes);

/// As TFRecord files hold it, so that a checksum of bytes that contain checksums is not degenerate.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace tessera::observe
