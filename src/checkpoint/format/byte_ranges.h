#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace tessera::checkpoints {

/// Which bytes of something have been written, each once.
class ByteRanges {
 public:
  /// False, and nothing added, when one of the bytes is there already.
  bool add(std::uint64_t begin, std::uint64_t end);
  /// The first byte below `num_bytes` that is missing; none when all are there.
  std::optional<std::uint64_t> first_missing(std::uint64_t num_bytes) const;

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin to end; neighbours are merged
};

}  // namespace tessera::checkpoints
