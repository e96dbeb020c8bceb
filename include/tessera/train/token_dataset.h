#pragma once

#include <tessera/core/options.h>
#include <tessera/tokens/token_file.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct TokenDatasetOptions {
  /// Tokens that a model predicts in a sample; a window has one more.
  TESSERA_ARG(std::int64_t, sequence_length) = 1024;
  /// "joined": windows go through the file from end to end, whatever document they meet. "separate": no window holds
  /// tokens of two documents, and the last one of each is filled up with padding. Needs files with an index.
  TESSERA_ARG(std::string, documents) = "joined";

 public:
  static const FieldList<TokenDatasetOptions>& fields();
};

/// What a model is trained on: `target` is `input` moved on by one token.
struct TokenBatch {
  at::Tensor input;   ///< int64 [samples, sequence_length]
  at::Tensor target;  ///< int64 of the same shape; `TokenDataset::kPadding` where there is nothing to predict

  /// The same in pinned memory, for a Loader with `pin_memory`.
  TokenBatch pin_memory() const;
};

/// Token files as windows of `sequence_length + 1` tokens. Windows overlap by one token, so each token is predicted
/// once: token t of a file (or of a document, when these are separate) by its window (t - 1) / sequence_length.
/// The tokens after the last whole window of a joined file are left out; `num_tokens_left_out()` is their number.
/// A handle: cheap to copy. Thread-safety: all members may be called from any thread.
class TokenDataset {
 public:
  /// The target behind the end of a document in its last window: cross_entropy ignores it. The input there is token 0.
  static constexpr std::int64_t kPadding = -100;

  /// Several files are one dataset, in this order; no window holds tokens of two. Separate documents take 8 bytes of
  /// memory each. Throws ConfigError when there is not one window, or when documents are to be separate and a file has
  /// no index.
  explicit TokenDataset(std::vector<TokenFile> files, const TokenDatasetOptions& options = {});

  /// Windows.
  std::int64_t size() const;
  std::int64_t sequence_length() const;
  std::int64_t num_tokens() const;
  /// Tokens that no window predicts, besides the first of each file or document.
  std::int64_t num_tokens_left_out() const;

  /// int64 [indices, sequence_length + 1]. Throws ConfigError when there is no such window.
  at::Tensor windows(std::span<const std::int64_t> indices) const;
  /// The same as input and target. Both are views of one tensor, unless there is padding.
  TokenBatch batch(std::span<const std::int64_t> indices) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tessera
