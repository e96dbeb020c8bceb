#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::disk {

/// Note [One result, several instruction sets]
/// A package must run on every processor, and code that touches every byte of a checkpoint should use the widest
/// registers. So such code is compiled once for each useful instruction set, and the best one that the processor
/// supports is chosen once at run time. All give the same bytes and numbers.
struct Kernels {
  /// XXH3 of 64 bits, seed 0.
  std::uint64_t (*checksum)(const void* data, std::size_t num_bytes);
  /// The same in pieces; `state` is an XXH3_state_t that the caller has initialised.
  void (*add_to_checksum)(void* state, const void* data, std::size_t num_bytes);
  /// As memcpy; see Note [Copies past the caches].
  void (*copy)(void* to, const void* from, std::size_t num_bytes);
  /// As `copy`, and returns the checksum of the bytes.
  std::uint64_t (*copy_and_sum)(void* to, const void* from, std::size_t num_bytes);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

/// The best for the processor this runs on.
const Kernels& best_kernels();

}  // namespace tessera::disk
