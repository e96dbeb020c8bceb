#pragma once

#include <tessera/comm/communicator.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace tessera::comm {

/// Flat, contiguous, typed memory: all that an engine sees of a tensor.
struct Buffer {
  std::byte* data = nullptr;
  std::int64_t count = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;

  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
  std::int64_t num_bytes() const { return count * element_bytes(); }
  Buffer slice(std::int64_t begin, std::int64_t length) const {
    return {data == nullptr ? nullptr : data + begin * element_bytes(), length, dtype};
  }
  std::span<std::byte> bytes() const { return {data, static_cast<std::size_t>(num_bytes())}; }
};

/// Elements of each rank.
using Counts = std::vector<std::int64_t>;

/// Where each rank's elements begin; one more entry than `counts`, the last being the total.
inline std::vector<std::int64_t> offsets_of(const Counts& counts) {
  std::vector<std::int64_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

/// `count` elements in `parts` nearly equal pieces, the remainder to the first ones.
inline Counts even_counts(std::int64_t count, int parts) {
  Counts counts(static_cast<std::size_t>(parts), count / parts);
  for (std::int64_t i = 0; i < count % parts; ++i) ++counts[static_cast<std::size_t>(i)];
  return counts;
}

/// Messages of users and of our algorithms may be under way at the same time. Each kind has its own channel, so that a
/// receive never gets a message of another kind.
constexpr int kUserChannel = 0;
constexpr int kRingChannel = 1;
constexpr int kTreeChannel = 2;
constexpr int kBackendChannel = 3;  ///< of an algorithm that is a backend's own
constexpr int kNumChannels = 4;

/// The moment after which a blocking call gives up.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds timeout) { return Deadline(Clock::now() + timeout, timeout); }

  Clock::time_point at() const { return at_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  bool passed() const { return Clock::now() >= at_; }
  std::chrono::nanoseconds remaining() const {
    return std::max(std::chrono::nanoseconds::zero(),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now()));
  }

 private:
  Deadline(Clock::time_point at, std::chrono::milliseconds timeout) : at_(at), timeout_(timeout) {}

  Clock::time_point at_;
  std::chrono::milliseconds timeout_;
};

/// Blocking collectives on flat memory: what a backend of ours implements. EngineBackend makes a `c10d::Backend` of it.
/// `counts` has one entry a rank. Pieces may be their own slices of `whole`.
/// Thread-safety: one call at a time.
class CollectiveEngine {
 public:
  virtual ~CollectiveEngine() = default;
  virtual std::string name() const = 0;

  virtual void all_reduce(Buffer data, ReduceOp op, Deadline deadline) = 0;
  virtual void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) = 0;
  virtual void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) = 0;
  virtual void broadcast(Buffer data, int root, Deadline deadline) = 0;
  /// The tensors of ranks other than `root` keep their values.
  virtual void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) = 0;
  /// `whole` and `counts` are used on `root` alone, and may be empty on the others; likewise in scatter.
  virtual void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) = 0;
  virtual void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) = 0;
  virtual void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                          Deadline deadline) = 0;
  virtual void barrier(Deadline deadline) = 0;
};

}  // namespace tessera::comm
