#pragma once

#include <tessera/core/error.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace tessera::tokens {

static_assert(std::endian::native == std::endian::little, "token files are little-endian, and are read as they lie");

/// A number at any offset: the arrays of Megatron's index are not aligned. Requires: it lies inside.
template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// The refusal of a file.
[[noreturn]] inline void refuse(const std::string& file, std::uint64_t offset, const std::string& expected,
                                const std::string& found) {
  throw ConfigError(file + ", byte " + std::to_string(offset) + ": expected " + expected + ", found " + found);
}

}  // namespace tessera::tokens
