#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// FNV-1a of bytes and numbers. The same in every build, so that ranks can compare theirs (std::hash may differ).
class Digest {
 public:
  Digest& add(std::string_view bytes) {
    for (const char byte : bytes) add(std::uint64_t{static_cast<std::uint8_t>(byte)});
    return *this;
  }
  /// In one go, not byte by byte.
  Digest& add(std::uint64_t number) {
    value_ = (value_ ^ number) * 0x100000001b3;
    return *this;
  }
  std::uint64_t value() const { return value_; }
  /// Never negative, nor when it is negated: for the greatest and the least of all ranks.
  std::int64_t positive() const { return static_cast<std::int64_t>(value_ >> 2U); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace tessera
