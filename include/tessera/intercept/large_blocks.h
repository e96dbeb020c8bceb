#pragma once

#include <cstddef>
#include <memory>

namespace tessera::intercept {

/// From here on, for the whole process and for good, tensors of 1 MiB and more on the CPU lie in memory apart from
/// malloc's. Returns false, and changes nothing, where something has replaced LibTorch's allocator.
///
/// Note [Holes in the heap]
/// LibTorch asks malloc for aligned blocks. glibc before 2.38 takes a little more for that and cuts it off on both
/// sides; small blocks settle there, and when the large one is freed its hole is some bytes too small for the next of
/// the same size. So the gradients of a large model, which come and go, leave hundreds of MiB that are nobody's. Here
/// blocks are whole pages, the best fit is taken, and neighbours that are free grow together. As with malloc, what is
/// free stays with the process for the next step, since fresh pages take time: up to what is in use, or 1 GiB.
bool keep_large_blocks_apart();

/// Of the same memory, whether or not tensors are kept there. Null when the system has none.
std::shared_ptr<void> large_block(std::size_t num_bytes);

struct LargeBlockBytes {
  std::size_t used;
  std::size_t spare;  ///< free, and kept
};
LargeBlockBytes large_block_bytes();

}  // namespace tessera::intercept
