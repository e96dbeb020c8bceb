#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/host/futex.h"

namespace tessera::comm {

/// What a rank tells the others at the start of a collective.
struct Post {
  std::uint32_t operation;
  std::int32_t dtype;
  std::int32_t reduce_op;
  std::int32_t root;
  std::int64_t count;    ///< elements, where all ranks must agree on them, else 0
  std::int64_t longest;  ///< elements of the longest block that this rank offers
  std::int32_t num_blocks;
  std::uint64_t address;  ///< of what it offers, when `direct`
  std::uint32_t direct;   ///< whether peers can reach that where it is
};

/// A piece of a message between two ranks.
struct Piece {
  std::uint64_t address;
  std::uint64_t num_bytes;
  std::uint64_t message_bytes;  ///< of the whole message
};

/// Pieces from one rank to another, in order. Two places, so that one is filled while the other is emptied.
struct alignas(64) PairQueue {
  static constexpr std::uint32_t kDepth = 2;
  std::atomic<std::uint32_t> posted;
  std::atomic<std::uint32_t> taken;
  std::array<Piece, kDepth> pieces;
};

/// The memory that the ranks of one host group share, laid out for `size` ranks. All zero is its initial state.
///
/// Note [Two of everything]
/// A rank may begin operation k+1 while a slower one still reads what was posted for operation k; but it passes no
/// barrier of k+1 before all have finished k. So posts, offsets and staging exist twice, used in turn.
class ControlBlock {
 public:
  static constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

  static std::size_t num_bytes(int size);

  ControlBlock(std::byte* memory, int size) : memory_(memory), size_(static_cast<std::size_t>(size)) {}

  FutexWord& arrived() const { return *at<FutexWord>(0); }
  /// 1 + the first rank that gave up waiting for the others; 0 while none has.
  FutexWord& gave_up() const { return *at<FutexWord>(32); }
  /// The ranks that have not let the group go.
  std::atomic<std::int32_t>& users() const { return *at<std::atomic<std::int32_t>>(40); }
  FutexWord& generation() const { return *at<FutexWord>(64); }
  FutexWord& doorbell(int rank) const { return *at<FutexWord>(128 + 64 * index(rank)); }
  Post& post(unsigned parity, int rank) const;
  /// Where the blocks of `rank`'s input begin, in elements.
  std::int64_t* offsets(unsigned parity, int rank) const { return row(0, parity, rank); }
  /// How long block `block` of `rank`'s input is, and how much `rank` will read of each other rank's, in elements.
  std::int64_t* offered(unsigned parity, int rank) const { return row(2, parity, rank); }
  std::int64_t* expected(unsigned parity, int rank) const { return row(4, parity, rank); }
  PairQueue& pair(int channel, int from, int to) const;
  std::byte* staging(unsigned parity, int rank) const;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  /// A number for each rank, in table `table + parity`.
  std::int64_t* row(unsigned table, unsigned parity, int rank) const;
  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  std::byte* memory_;
  std::size_t size_;
};

}  // namespace tessera::comm
