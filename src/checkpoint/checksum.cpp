#include <tessera/checkpoint/checksum.h>

#include "checkpoint/checksum_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(XXH_VERSION_NUMBER >= 800, "before 0.8.0 XXH3 gave other numbers");

namespace tessera {
namespace checkpoints {

std::uint64_t checksum_portable(const void* data, std::size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

}  // namespace checkpoints

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  static const checkpoints::ChecksumKernel kernel = checkpoints::best_checksum_kernel();
  return kernel(bytes.data(), bytes.size());
}

struct RunningChecksum::State {
  XXH3_state_t hash;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }
RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
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
