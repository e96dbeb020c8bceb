// Compiled for processors with AVX512 only.
#include <immintrin.h>

namespace tessera::disk {
namespace {

struct Vector {
  using Type = __m512i;
  static Type load(const char* from) { return _mm512_loadu_si512(reinterpret_cast<const __m512i*>(from)); }
  static void stream(char* to, Type value) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value); }
};

}  // namespace
}  // namespace tessera::disk

#include "disk/kernel_bodies.h"

namespace tessera::disk {

const Kernels kAvx512Kernels{checksum, add_to_checksum, copy, copy_and_sum};

}  // namespace tessera::disk
