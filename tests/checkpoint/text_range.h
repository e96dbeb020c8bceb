#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/plan/write_extent.h"

namespace tessera::checkpoints {

/// Writes the text at that place of a file. The text must outlive it.
inline WriteRange range(std::uint64_t offset, std::string_view text) {
  return {offset, std::as_bytes(std::span(text))};
}

}  // namespace tessera::checkpoints
