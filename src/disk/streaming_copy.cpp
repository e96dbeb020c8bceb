#include <tessera/disk/streaming_copy.h>

#include <cstring>

#include "disk/kernels.h"

namespace tessera::disk {
namespace {

/// Fewer bytes than this are copied through the caches: they displace little, and are soon read from there.
constexpr std::size_t kLeastStreamed = std::size_t{64} << 10;

}  // namespace

void streaming_copy(std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;  // memcpy takes no null pointer, even for nothing
  if (from.size() < kLeastStreamed) {
    std::memcpy(to, from.data(), from.size());
  } else {
    best_kernels().copy(to, from.data(), from.size());
  }
}

std::uint64_t streaming_copy_and_sum(std::span<const std::byte> from, std::byte* to) {
  if (from.size() >= kLeastStreamed) return best_kernels().copy_and_sum(to, from.data(), from.size());
  streaming_copy(from, to);
  return best_kernels().checksum(from.data(), from.size());
}

}  // namespace tessera::disk
