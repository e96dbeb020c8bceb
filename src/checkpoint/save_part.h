#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// What a rank tells rank 0 when its bytes are on the disk: the checksums of what it wrote, in the order of its plan.
struct SavePart {
  std::vector<std::vector<std::uint64_t>> checksums;

  std::string to_text() const;
  /// Throws StorageError for a text that to_text() does not write; `origin` names it.
  static SavePart parse(std::string_view text, const std::string& origin);
};

}  // namespace tessera::checkpoints
