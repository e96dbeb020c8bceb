// What kernels_avx2.cpp and kernels_avx512.cpp have in common: each includes it once, after its own `Vector`. Only
// headers that define no functions may be included here: the linker might use theirs for all processors.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "disk/kernels.h"

namespace tessera::disk {
namespace {

std::uint64_t checksum(const void* data, std::size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

void add_to_checksum(void* state, const void* data, std::size_t num_bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, num_bytes);
}

/// Note [Copies past the caches]
/// A copy of hundreds of megabytes replaces all that the caches hold, and an ordinary store first reads the line that
/// it then overwrites. These stores do neither. Four pages are copied side by side, because a processor fetches ahead
/// within a page: that keeps four of its streams busy instead of one.
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kNumPages = 4;
constexpr std::size_t kLineBytes = 128;  // copied of each page in turn: two cache lines

void copy_line(char* to, const char* from) {
  Vector::Type values[kLineBytes / sizeof(Vector::Type)];
  for (std::size_t i = 0; i < kLineBytes / sizeof(Vector::Type); ++i) {
    values[i] = Vector::load(from + i * sizeof(Vector::Type));
  }
  for (std::size_t i = 0; i < kLineBytes / sizeof(Vector::Type); ++i) {
    Vector::stream(to + i * sizeof(Vector::Type), values[i]);
  }
}

void copy_pages(char* to, const char* from) {
  for (std::size_t line = 0; line < kPageBytes; line += kLineBytes) {
    for (std::size_t page = 0; page < kNumPages; ++page) {
      copy_line(to + page * kPageBytes + line, from + page * kPageBytes + line);
    }
  }
}

void copy(void* destination, const void* source, std::size_t num_bytes) {
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  std::size_t step = -reinterpret_cast<std::uintptr_t>(to) % sizeof(Vector::Type);
  if (step > num_bytes) step = num_bytes;
  std::memcpy(to, from, step);
  for (num_bytes -= step; num_bytes >= kNumPages * kPageBytes; num_bytes -= step) {
    to += step;
    from += step;
    step = kNumPages * kPageBytes;
    copy_pages(to, from);
  }
  std::memcpy(to + step, from + step, num_bytes);
  _mm_sfence();  // else another core might see later stores before these
}

/// A kilobyte is summed, then copied, while the next is prefetched. It is so little that the processor still computes
/// the sum of one while it waits for the memory of the next. With pieces of 64 KiB both took a fifth longer.
constexpr std::size_t kSummedAtOnce = 1024;

void copy_summed(char* to, const char* from) {
  for (std::size_t i = 0; i < kSummedAtOnce; i += sizeof(Vector::Type)) {
    if (i % 64 == 0) _mm_prefetch(from + kSummedAtOnce + i, _MM_HINT_T1);  // past the end too: it never faults
    Vector::stream(to + i, Vector::load(from + i));
  }
}

std::uint64_t copy_and_sum(void* destination, const void* source, std::size_t num_bytes) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  std::size_t step = -reinterpret_cast<std::uintptr_t>(to) % sizeof(Vector::Type);
  if (step > num_bytes) step = num_bytes;
  XXH3_64bits_update(&state, from, step);
  std::memcpy(to, from, step);
  for (num_bytes -= step; num_bytes >= kSummedAtOnce; num_bytes -= step) {
    to += step;
    from += step;
    step = kSummedAtOnce;
    XXH3_64bits_update(&state, from, step);
    copy_summed(to, from);
  }
  XXH3_64bits_update(&state, from + step, num_bytes);
  std::memcpy(to + step, from + step, num_bytes);
  _mm_sfence();
  return XXH3_64bits_digest(&state);
}

}  // namespace
}  // namespace tessera::disk
