#include <tessera/core/error.h>
#include <tessera/train/permutation.h>

#include <bit>
#include <cstddef>
#include <string>

namespace tessera {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio
constexpr std::int64_t kLargest = std::int64_t{1} << 62;

/// Every bit of the result depends on every bit of the number (the finaliser of SplitMix64).
std::uint64_t mix(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }

}  // namespace

Permutation::Permutation(std::int64_t size, std::int64_t seed, std::int64_t epoch) : size_(size) {
  if (size < 1 || size > kLargest) {
    throw ConfigError("an order of " + std::to_string(size) + " samples: expected 1 to 2^62");
  }
  const int num_bits = std::bit_width(static_cast<std::uint64_t>(size - 1));
  num_low_bits_ = num_bits / 2;
  low_mask_ = low_bits(num_low_bits_);
  high_mask_ = low_bits(num_bits - num_low_bits_);
  std::uint64_t state = mix(static_cast<std::uint64_t>(seed) + kStep);
  state = mix(state ^ (static_cast<std::uint64_t>(epoch) + 2 * kStep));
  state = mix(state ^ (static_cast<std::uint64_t>(size) + 3 * kStep));
  for (std::uint64_t& key : keys_) {
    state += kStep;
    key = mix(state);
  }
}

std::uint64_t Permutation::pass(std::uint64_t number) const {
  std::uint64_t low = number & low_mask_;
  std::uint64_t high = number >> num_low_bits_;
  for (int round = 0; round < kNumRounds; round += 2) {
    low ^= mix(high + keys_[static_cast<std::size_t>(round)]) & low_mask_;
    high ^= mix(low + keys_[static_cast<std::size_t>(round) + 1]) & high_mask_;
  }
  return (high << num_low_bits_) | low;
}

std::int64_t Permutation::at(std::int64_t position) const {
  auto number = static_cast<std::uint64_t>(position);
  do {
    number = pass(number);
  } while (number >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(number);
}

}  // namespace tessera
