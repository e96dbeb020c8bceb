#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::models {

/// The keys and values of the tokens that a model has seen, for every layer, so that a further token costs one step.
/// For generation alone: it keeps no graph.
/// Thread-safety: none.
class KvCache {
 public:
  /// Room for `context` tokens of each of `batch` texts. `like` gives type and device.
  KvCache(std::int64_t num_layers, std::int64_t batch, std::int64_t num_heads, std::int64_t context,
          std::int64_t head_width, const at::Tensor& like);

  /// The tokens that all layers hold.
  std::int64_t length() const { return length_; }
  std::int64_t context() const { return context_; }
  void clear() { length_ = 0; }

  /// Adds keys and values of new tokens, [batch, heads, tokens, head width], to a layer; returns all of that layer.
  /// Throws ConfigError when there is no room.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  /// Counts the new tokens. Call it after append() for every layer.
  void advance(std::int64_t num_tokens) { length_ += num_tokens; }

 private:
  std::int64_t context_;
  std::int64_t length_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> layers_;
};

}  // namespace tessera::models
