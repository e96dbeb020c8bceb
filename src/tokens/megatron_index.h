#pragma once

#include <tessera/tokens/token_type.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera::tokens {

/// An .idx file of Megatron, checked and then read in place.
class MegatronIndex {
 public:
  /// `bytes` outlive this. The file with the tokens has `num_data_bytes`. Throws ConfigError for what the description
  /// of the format does not allow, naming the file and the offset.
  MegatronIndex(std::span<const std::byte> bytes, const std::string& name, std::uint64_t num_data_bytes,
                const std::string& data_name);

  TokenType type() const { return type_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_documents() const { return num_documents_; }

  /// The first token of a document; for `num_documents()` the number of all tokens. Requires: no more than that.
  std::int64_t document_begin(std::int64_t document) const;

 private:
  void read_header(const std::string& name);
  void check_sequences(const std::string& name, std::uint64_t num_data_bytes, const std::string& data_name);
  void check_documents(const std::string& name) const;
  std::int64_t first_sequence(std::int64_t document) const;

  std::span<const std::byte> bytes_;
  TokenType type_{};
  std::int64_t num_tokens_ = 0;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  std::size_t lengths_at_ = 0;
  std::size_t pointers_at_ = 0;
  std::size_t documents_at_ = 0;
};

/// The head of an index of these facts, and the code of a type in it. `num_documents` is without the entry at the end.
std::string megatron_header(TokenType type, std::int64_t num_sequences, std::int64_t num_documents);

}  // namespace tessera::tokens
