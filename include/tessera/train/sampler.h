#pragma once

#include <tessera/train/permutation.h>
#include <tessera/train/sampler_options.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Where a run is in its data: all that a checkpoint must keep of it. It says nothing of ranks, so a run may go on with
/// another number of them.
struct SamplerState {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  ///< samples of this epoch that were handed out, over all ranks
  std::int64_t num_samples = 0;
  bool shuffled = true;

  /// The state after so many samples more, over all ranks, of the same epoch.
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
/// never on the ranks; a global batch is a stretch of that order, and each rank takes its part of it. So each sample is
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

  /// The next batch; nothing, once, at the end of an epoch, and the call after that begins the next one.
  std::optional<SampleBatch> next();

  SamplerState state() const;
  /// Goes on where `state` was taken. Throws ConfigError when it is of another dataset size, seed or order.
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
