#pragma once

#include <tessera/core/options.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A shuffled order of 0 ... size - 1 that is computed, not stored: `at(i)` is the i-th of it.
///
/// Note [An order without a list]
/// Shuffling a list costs 8 bytes a sample on every rank, and time before the first step that grows with the dataset;
/// and to go on in the middle of an epoch the list must be made again. A keyed permutation needs neither: the key is
/// (seed, epoch), and any position is computed by itself. It is a Feistel network: the number's bits are two halves,
/// and each round changes one half by a hash of the other and of the round's key, which can be undone whatever the hash
/// is, so no two numbers have the same result. It permutes ranges whose size is a power of two. For any other size the
/// next larger power is used, and a result outside the size is sent through again until one is inside (cycle walking).
/// That is still a permutation of the inside, and takes fewer than two passes on average, since more than half is
/// inside.
/// The number of rounds is for small sizes: halves of one or two bits mix slowly. This is no cryptography.
///
/// The order depends on size, seed and epoch alone. Saved states rely on it, so another order needs another `kVersion`.
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

struct SamplerOptions {
  /// "shuffled", another order in each epoch, or "sequential", as the samples lie; for validation.
  TESSERA_ARG(std::string, order) = "shuffled";
  /// Another seed is another order. Also a run that goes on from a saved state must have the state's.
  TESSERA_ARG(std::int64_t, seed) = 0;
  /// Samples of a step over all ranks. May differ from that of the run that saved the state.
  TESSERA_ARG(std::int64_t, global_batch) = 1;
  /// Which samples of a global batch a rank takes: "contiguous", one extent after another by rank, or "strided", every
  /// n-th. Leave it, unless the samples of an extent have something in common.
  TESSERA_ARG(std::string, split) = "contiguous";
  /// What happens to the samples at an epoch's end that fill no batch: "drop" leaves them out of this epoch, "keep"
  /// makes a shorter batch, in which ranks may have fewer samples than others, or none.
  TESSERA_ARG(std::string, last_batch) = "drop";

 public:
  static const FieldList<SamplerOptions>& fields();
};

/// Where a run is in its data: all that a checkpoint must keep of it. It says nothing of ranks, so a run may go on with
/// another number of them.
struct SamplerState {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  ///< samples of this epoch that were handed out, over all ranks
  std::int64_t num_samples = 0;
  bool shuffled = true;

  /// The state after `samples` more, over all ranks, of the same epoch.
  SamplerState advanced(std::int64_t samples) const;

  /// As numbers by name, for a checkpoint's metadata.
  std::map<std::string, std::int64_t> to_values() const;
  /// Throws ConfigError naming every value that is missing, unknown or impossible.
  static SamplerState from_values(const std::map<std::string, std::int64_t>& values);

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// One rank's part of a global batch.
struct SampleBatch {
  std::int64_t epoch = 0;
  std::int64_t first = 0;             ///< the position in the epoch of the global batch's first sample
  std::int64_t size = 0;              ///< samples of the global batch, over all ranks
  std::vector<std::int64_t> samples;  ///< this rank's, in the epoch's order
};

/// Deals the samples of a dataset to the ranks. The order of an epoch depends on seed, epoch and the dataset's size,
/// never on the ranks; a global batch is an extent of that order, and each rank takes its part of it. So each sample is
/// seen exactly once an epoch, also when a run stops and goes on with other ranks or another batch size.
/// No communication: every rank computes its part. Memory and time for a sample do not grow with the dataset.
///
///   tessera::Sampler sampler(dataset.size(), world.rank(), world.size(), SamplerOptions().global_batch(512));
///   for (int epoch = 0; epoch < 3; ++epoch) {
///     while (auto batch = sampler.next()) train_on(dataset.batch(batch->samples));
///   }
///
/// All ranks get the same number of batches, each at the same step, so collectives in the loop match.
/// Thread-safety: one thread.
class Sampler {
 public:
  /// `rank` and `num_ranks` count copies of the model: of a mesh, the data-parallel axis.
  /// Throws ConfigError with all faults at once.
  Sampler(std::int64_t num_samples, int rank, int num_ranks, const SamplerOptions& options = {});

  /// The next batch. At the end of an epoch nothing, once; the call after that begins the next epoch.
  std::optional<SampleBatch> next();

  SamplerState state() const;
  /// Continues where `state` was taken. Throws ConfigError when it has another dataset size, seed or order.
  void restore(const SamplerState& state);

  std::int64_t num_samples() const { return num_samples_; }
  std::int64_t epoch() const { return epoch_; }
  /// Batches until the end of the epoch.
  std::int64_t num_batches_left() const;
  /// The most samples that this rank gets in a batch.
  std::int64_t largest_part() const;
  const SamplerOptions& options() const { return options_; }

 private:
  std::int64_t next_size() const;
  std::vector<std::int64_t> part_of(std::int64_t first, std::int64_t size) const;

  std::int64_t num_samples_;
  int rank_;
  int num_ranks_;
  SamplerOptions options_;
  bool shuffled_;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
  Permutation order_;
};

}  // namespace tessera
