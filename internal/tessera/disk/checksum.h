#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// XXH3 of 64 bits, seed 0. Finds damage, and proves nothing about who wrote the bytes.
std::uint64_t checksum_of(std::span<const std::byte> bytes);

/// The same for bytes that arrive in pieces.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

  void add(std::span<const std::byte> bytes);
  /// The checksum of all bytes so far.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3 of 128 bits, seed 0, as 32 hexadecimal digits, the highest first.
std::string root_checksum_of(std::string_view text);

/// 16 hexadecimal digits, the highest first.
std::string checksum_text(std::uint64_t checksum);

}  // namespace tessera
