#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <algorithm>

namespace tessera {
namespace {

using std::to_string;

/// Throws ConfigError with all faults at once.
SamplerOptions checked(std::int64_t num_samples, int rank, int num_ranks, const SamplerOptions& options) {
  SamplerOptions::fields().check(options);
  std::string faults;
  if (num_samples < 1) faults += "\n  the dataset has " + to_string(num_samples) + " samples; expected 1 or more";
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    faults += "\n  rank " + to_string(rank) + " of " + to_string(num_ranks) + " ranks: expected 0 to ranks - 1";
  }
  if (options.global_batch() < std::max(1, num_ranks)) {
    faults += "\n  a global_batch of " + to_string(options.global_batch()) + " leaves some of " + to_string(num_ranks) +
              " ranks without samples: raise it, or use fewer ranks";
  }
  if (options.last_batch() == "drop" && options.global_batch() > num_samples && num_samples > 0) {
    faults += "\n  a global_batch of " + to_string(options.global_batch()) + " is more than the " +
              to_string(num_samples) + " samples of an epoch, which last_batch \"drop\" would leave out: lower it";
  }
  if (!faults.empty()) throw ConfigError("a sampler cannot work so (rank " + to_string(rank) + "):" + faults);
  return options;
}

}  // namespace

Sampler::Sampler(std::int64_t num_samples, int rank, int num_ranks, const SamplerOptions& options)
    : num_samples_(num_samples),
      rank_(rank),
      num_ranks_(num_ranks),
      options_(checked(num_samples, rank, num_ranks, options)),
      shuffled_(options.order() == "shuffled"),
      order_(num_samples, options.seed(), 0) {}

std::int64_t Sampler::next_size() const {
  const std::int64_t left = num_samples_ - consumed_;
  if (left >= options_.global_batch()) return options_.global_batch();
  return options_.last_batch() == "keep" ? left : 0;
}

std::optional<SampleBatch> Sampler::next() {
  const std::int64_t size = next_size();
  if (size == 0) {
    ++epoch_;
    consumed_ = 0;
    order_ = Permutation(num_samples_, options_.seed(), epoch_);
    return std::nullopt;
  }
  SampleBatch batch{epoch_, consumed_, size, part_of(consumed_, size)};
  consumed_ += size;
  return batch;
}

std::vector<std::int64_t> Sampler::part_of(std::int64_t first, std::int64_t size) const {
  // In both ways of splitting the counts differ by one at most, the first ranks having more.
  const std::int64_t count = size / num_ranks_ + (rank_ < size % num_ranks_ ? 1 : 0);
  const bool strided = options_.split() == "strided";
  const std::int64_t stride = strided ? num_ranks_ : 1;
  const std::int64_t begin =
      strided ? rank_ : rank_ * (size / num_ranks_) + std::min<std::int64_t>(rank_, size % num_ranks_);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::int64_t position = first + begin;
  for (std::int64_t& sample : samples) {
    sample = shuffled_ ? order_.at(position) : position;
    position += stride;
  }
  return samples;
}

std::int64_t Sampler::num_batches_left() const {
  const std::int64_t left = num_samples_ - consumed_;
  const bool keeps = options_.last_batch() == "keep";
  return left / options_.global_batch() + (keeps && left % options_.global_batch() != 0 ? 1 : 0);
}

std::int64_t Sampler::largest_part() const {
  const std::int64_t size = options_.global_batch();
  return size / num_ranks_ + (rank_ < size % num_ranks_ ? 1 : 0);
}

SamplerState Sampler::state() const { return {options_.seed(), epoch_, consumed_, num_samples_, shuffled_}; }

void Sampler::restore(const SamplerState& state) {
  std::string faults;
  const auto expect_same = [&](const char* what, std::int64_t saved, std::int64_t here) {
    if (saved != here) {
      faults +=
          std::string("\n  ") + what + ": the state has " + to_string(saved) + ", this sampler " + to_string(here);
    }
  };
  expect_same("samples in the dataset", state.num_samples, num_samples_);
  expect_same("shuffled", state.shuffled ? 1 : 0, shuffled_ ? 1 : 0);
  if (shuffled_) expect_same("seed", state.seed, options_.seed());
  if (state.epoch < 0 || state.consumed < 0 || state.consumed > num_samples_) {
    faults += "\n  epoch " + to_string(state.epoch) + ", " + to_string(state.consumed) + " samples consumed";
  }
  if (!faults.empty()) {
    throw ConfigError("a sampler cannot go on from this state, samples would be seen twice or never (rank " +
                      to_string(rank_) + "):" + faults);
  }
  epoch_ = state.epoch;
  consumed_ = state.consumed;
  order_ = Permutation(num_samples_, options_.seed(), epoch_);
}

}  // namespace tessera
