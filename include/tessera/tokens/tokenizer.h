#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Text to numbers and back. Implement it to pack text with a tokenizer of your own.
/// Thread-safety: all members may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  /// Tokens are below it.
  virtual std::int64_t vocabulary_size() const = 0;
  /// The token that ends a document; nothing when the vocabulary has none.
  virtual std::optional<std::int64_t> end_of_document() const = 0;
  /// Appends the tokens of a whole document to `tokens`. Throws ConfigError for text that it cannot encode.
  virtual void encode(std::string_view text, std::vector<std::int64_t>& tokens) const = 0;
  /// Throws ConfigError for numbers that are no tokens. The end of a document has no text.
  virtual std::string decode(std::span<const std::int64_t> tokens) const = 0;
};

/// Each byte is a token, 0 to 255, so text of any language decodes to itself; 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr std::int64_t kEndOfDocument = 256;

  std::string name() const override { return "bytes"; }
  std::int64_t vocabulary_size() const override { return kEndOfDocument + 1; }
  std::optional<std::int64_t> end_of_document() const override { return kEndOfDocument; }
  void encode(std::string_view text, std::vector<std::int64_t>& tokens) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
};

}  // namespace tessera
