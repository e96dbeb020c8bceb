#pragma once

#include <cstddef>

namespace tessera::checkpoints {

/// The most that direct_alignment() tells.
inline constexpr std::size_t kMostAlignment = std::size_t{64} << 10;

/// What places and lengths of direct I/O in a file, and its memory, are multiples of: a power of two, at least a page.
std::size_t direct_alignment(int file);

}  // namespace tessera::checkpoints
