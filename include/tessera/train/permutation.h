#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// A shuffled order of 0 ... size - 1 that is computed, not stored: `at(i)` is the i-th of it.
///
/// Note [An order without a list]
/// Shuffling a list costs 8 bytes a sample on every rank, and time before the first step that grows with the dataset;
/// and to go on in the middle of an epoch the list must be made again. A keyed permutation needs neither: the key is
/// (seed, epoch), and any position is computed by itself. It is a Feistel network: the number's bits are two halves,
/// and each round changes one half by a hash of the other and of the round's key, which can be undone whatever the hash
/// is, so no two numbers meet. It permutes the powers of two; where the size is none, the smallest that is not smaller
/// serves, and a result outside is sent through again until one is inside (cycle walking). That keeps it a permutation
/// of the inside, and takes fewer than two passes on average, since more than half is inside.
/// The number of rounds is for small sizes: halves of one or two bits mix slowly. This is no cryptography.
///
/// The order depends on size, seed and epoch alone and is part of what saved states promise: a change of it is a change
/// of `kVersion`.
/// Thread-safety: all members may be called from any thread.
class Permutation {
 public:
  static constexpr std::int64_t kVersion = 1;

  /// Throws ConfigError unless the size is above 0 and at most 2^62.
  Permutation(std::int64_t size, std::int64_t seed, std::int64_t epoch);

  std::int64_t size() const { return size_; }
  /// Requires: 0 <= position < size(). Takes some 100 ns.
  std::int64_t at(std::int64_t position) const;

 private:
  static constexpr int kNumRounds = 16;

  std::uint64_t pass(std::uint64_t number) const;

  std::int64_t size_;
  int num_low_bits_ = 0;
  std::uint64_t low_mask_ = 0;
  std::uint64_t high_mask_ = 0;
  std::array<std::uint64_t, kNumRounds> keys_{};
};

}  // namespace tessera
