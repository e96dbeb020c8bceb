#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::checkpoints {

/// Note [One checksum, several instruction sets]
/// The library's header compiles for the instructions that the compiler may use, and a package must run everywhere. So
/// XXH3 is compiled once for each set worth having, and the processor is asked once which is the best that it has. All
/// give the same numbers.
using ChecksumKernel = std::uint64_t (*)(const void* data, std::size_t num_bytes);

std::uint64_t checksum_portable(const void* data, std::size_t num_bytes);
std::uint64_t checksum_avx2(const void* data, std::size_t num_bytes);
std::uint64_t checksum_avx512(const void* data, std::size_t num_bytes);

/// The best for the processor this runs on.
ChecksumKernel best_checksum_kernel();

}  // namespace tessera::checkpoints
