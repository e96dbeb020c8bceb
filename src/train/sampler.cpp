#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>

namespace tessera {
namespace {

constexpr std::array<const char*, 6> kKeys = {"seed",        "epoch",    "consumed",
                                              "num_samples", "shuffled", "permutation_version"};

}  // namespace

SamplerState SamplerState::advanced(std::int64_t samples) const {
  if (samples < 0 || samples > num_samples - consumed) {
    throw ConfigError("the epoch has " + std::to_string(num_samples - consumed) +
                      " samples left; asked to advance by " + std::to_string(samples));
  }
  SamplerState state = *this;
  state.consumed += samples;
  return state;
}

std::map<std::string, std::int64_t> SamplerState::to_values() const {
  return {{"seed", seed},
          {"epoch", epoch},
          {"consumed", consumed},
          {"num_samples", num_samples},
          {"shuffled", shuffled ? 1 : 0},
          {"permutation_version", Permutation::kVersion}};
}

SamplerState SamplerState::from_values(const std::map<std::string, std::int64_t>& values) {
  std::string faults;
  for (const char* key : kKeys) {
    if (!values.contains(key)) faults += std::string("\n  ") + key + " is missing";
  }
  for (const auto& [key, value] : values) {
    bool known = false;
    for (const char* one : kKeys) known = known || key == one;
    if (!known) faults += "\n  " + key + " is no part of it";
  }
  if (!faults.empty()) throw ConfigError("the state of a sampler cannot be read:" + faults);

  const SamplerState state{values.at("seed"), values.at("epoch"), values.at("consumed"), values.at("num_samples"),
                           values.at("shuffled") != 0};
  const auto expect = [&](bool holds, const char* key, const std::string& expected) {
    if (holds) return;
    faults += std::string("\n  ") + key + " is " + std::to_string(values.at(key)) + "; expected " + expected;
  };
  expect(state.epoch >= 0, "epoch", "0 or more");
  expect(state.num_samples > 0, "num_samples", "1 or more");
  expect(state.consumed >= 0 && state.consumed <= state.num_samples, "consumed", "0 to num_samples");
  expect(values.at("shuffled") == 0 || values.at("shuffled") == 1, "shuffled", "0 or 1");
  expect(values.at("permutation_version") == Permutation::kVersion, "permutation_version",
         std::to_string(Permutation::kVersion) + ": another version of Tessera shuffled in another way");
  if (!faults.empty()) throw ConfigError("the state of a sampler cannot be read:" + faults);
  return state;
}

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

const FieldList<SamplerOptions>& SamplerOptions::fields() {
  static const FieldList<SamplerOptions> list =
      FieldList<SamplerOptions>("sampler")
          .add_choice("order", &SamplerOptions::order_, {"shuffled", "sequential"},
                      "Another order in each epoch, or as the samples lie.")
          .add("seed", &SamplerOptions::seed_, "Another seed is another order.")
          .add("global_batch", &SamplerOptions::global_batch_, "Samples of a step over all ranks.")
          .add_choice("split", &SamplerOptions::split_, {"contiguous", "strided"},
                      "Which samples of a global batch a rank takes: an extent, or every n-th.")
          .add_choice("last_batch", &SamplerOptions::last_batch_, {"drop", "keep"},
                      "Samples at an epoch's end that fill no batch: left out, or a shorter batch.");
  return list;
}

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
