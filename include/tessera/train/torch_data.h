#pragma once

// Tessera's data for LibTorch's own loader. Not part of tessera.h, since torch/data is slow to compile.

#include <tessera/core/error.h>
#include <tessera/train/sampler.h>
#include <tessera/train/token_dataset.h>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A Sampler as one of torch::data's:
///
///   auto loader = torch::data::make_data_loader(
///       tessera::TorchTokenDataset(dataset).map(torch::data::transforms::Stack<>()),
///       tessera::TorchSampler(sampler),
///       torch::data::DataLoaderOptions().batch_size(sampler.largest_part()).workers(2));
///   for (auto& batch : *loader) ...                       // one epoch; the next loop is the next epoch
///
/// torch::data asks for batches ahead of the loop, so this cannot tell which of them the loop has received. The loop
/// can: after n global batches of b samples its state is `sampler.state().advanced(n * b)`, with the sampler as it was
/// before the loop. tessera::Loader keeps that state itself.
/// torch::data has no empty batches: with `last_batch` "keep", a rank that gets no sample throws ConfigError.
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit TorchSampler(tessera::Sampler sampler) : sampler_(std::move(sampler)), start_(sampler_.state()) {}

  /// The first call begins where the sampler stands. Each later one begins the next epoch, even if the loop before it
  /// ended early.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override {
    if (new_size && static_cast<std::int64_t>(*new_size) != sampler_.num_samples()) {
      throw ConfigError("a sampler for " + std::to_string(sampler_.num_samples()) + " samples was asked for " +
                        std::to_string(*new_size) + ": make another one, its order would be another");
    }
    const std::int64_t begun = start_.epoch;
    if (running_ && sampler_.epoch() == begun) {
      SamplerState next = start_;
      next.epoch = begun + 1;
      next.consumed = 0;
      sampler_.restore(next);
    }
    start_ = sampler_.state();
    running_ = true;
    ended_ = false;
  }

  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    if (static_cast<std::int64_t>(batch_size) != sampler_.largest_part()) {
      throw ConfigError("the batch size of the data loader is " + std::to_string(batch_size) +
                        ", and this rank's part of a global batch of " +
                        std::to_string(sampler_.options().global_batch()) + " is " +
                        std::to_string(sampler_.largest_part()) + ": DataLoaderOptions().batch_size(that)");
    }
    // The loader may call again after the end of the epoch; that must not begin the next one.
    const auto batch = ended_ ? std::nullopt : sampler_.next();
    ended_ = !batch;
    if (!batch) return std::nullopt;
    if (batch->samples.empty()) {
      throw ConfigError(
          "the last batch has " + std::to_string(batch->size) +
          " samples and none for this rank, which torch::data cannot express: use last_batch \"drop\", or "
          "tessera::Loader");
    }
    return std::vector<std::size_t>(batch->samples.begin(), batch->samples.end());
  }

  /// Saves the sampler's own position, which is ahead of the loop's.
  void save(torch::serialize::OutputArchive& archive) const override {
    for (const auto& [key, value] : sampler_.state().to_values()) archive.write(key, c10::IValue(value));
  }
  void load(torch::serialize::InputArchive& archive) override {
    std::map<std::string, std::int64_t> values;
    for (const std::string& key : archive.keys()) {
      c10::IValue value;
      archive.read(key, value);
      values[key] = value.toInt();
    }
    sampler_.restore(SamplerState::from_values(values));
    start_ = sampler_.state();
    running_ = false;
    ended_ = false;
  }

 private:
  tessera::Sampler sampler_;
  SamplerState start_;    ///< where the present loop began
  bool running_ = false;  ///< a loop has begun since it was made or loaded
  bool ended_ = false;
};

/// A TokenDataset as one of torch::data's: `data` is the input, `target` the target, int64 [sequence_length] each.
class TorchTokenDataset : public torch::data::datasets::Dataset<TorchTokenDataset> {
 public:
  explicit TorchTokenDataset(TokenDataset dataset) : dataset_(std::move(dataset)) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto window = static_cast<std::int64_t>(index);
    const TokenBatch batch = dataset_.batch({&window, 1});
    return {batch.input[0], batch.target[0]};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(dataset_.size()); }

 private:
  TokenDataset dataset_;
};

}  // namespace tessera
