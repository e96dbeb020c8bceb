#pragma once

#include <cstddef>
#include <memory>

namespace tessera::intercept {

/// From now on, in the whole process and permanently, CPU tensors of 1 MiB and more lie in memory apart from malloc's.
/// Returns false, and changes nothing, if something has replaced LibTorch's allocator.
///
/// Note [Holes in the heap]
/// LibTorch asks malloc for aligned blocks. glibc before 2.38 allocates a little more and frees the excess on both
/// sides. Small blocks settle there, and when the large block is freed, its hole is some bytes too small for the next
/// block of the same size. So the gradients of a large model, which are allocated and freed in each step, leave
/// hundreds of MiB unused. Here blocks are whole pages, the best fit is taken, and free neighbours are merged. As with
/// malloc, free memory stays with the process for the next step, since fresh pages take time to fault in: at most as
/// many bytes as are in use, or 1 GiB if that is more.
bool keep_large_blocks_apart();

/// A block of the same memory, whether or not tensors lie there. Null when the system has none.
std::shared_ptr<void> large_block(std::size_t num_bytes);

struct LargeBlockBytes {
  std::size_t used;
  std::size_t spare;  ///< free, and kept
};
LargeBlockBytes large_block_bytes();

}  // namespace tessera::intercept
