// Compiled for processors with AVX2 only.
#include <immintrin.h>

namespace tessera::disk {
namespace {

struct Vector {
  using Type = __m256i;
  static Type load(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void stream(char* to, Type value) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value); }
};

}  // namespace
}  // namespace tessera::disk

#include "disk/kernel_bodies.h"

namespace tessera::disk {

const Kernels kAvx2Kernels{checksum, add_to_checksum, copy, copy_and_sum};

}  // namespace tessera::disk
