#include <tessera/disk/checksum.h>

#include "disk/kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return disk::best_kernels().checksum(bytes.data(), bytes.size());
}

struct RunningChecksum::State {
  XXH3_state_t hash;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }
RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::add(std::span<const std::byte> bytes) {
  disk::best_kernels().add_to_checksum(&state_->hash, bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::value() const { return XXH3_64bits_digest(&state_->hash); }

std::string checksum_text(std::uint64_t checksum) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; checksum >>= 4) text[i] = kDigits[checksum & 15];
  return text;
}

std::string root_checksum_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return checksum_text(hash.high64) + checksum_text(hash.low64);
}

}  // namespace tessera
