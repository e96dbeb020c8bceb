#pragma once

#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace tessera::tokens {

static_assert(std::endian::native == std::endian::little, "token files are little-endian, and are read as they lie");

/// A number at any offset, since the arrays of Megatron's index are not aligned. Requires: it lies inside `bytes`.
template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// The refusal of a file.
[[noreturn]] inline void refuse(const std::string& file, std::uint64_t offset, const std::string& expected,
                                const std::string& found) {
  throw ConfigError(file + ", byte " + std::to_string(offset) + ": expected " + expected + ", found " + found);
}

/// The content of the 256 numbers before the tokens of an llm.c file.
struct LlmcHeader {
  static constexpr std::size_t kNumBytes = 1024;

  TokenFormat format{};
  std::int64_t num_tokens = 0;
};

/// Whether the file begins as one of llm.c's does.
bool is_llmc(std::span<const std::byte> bytes);

/// Throws ConfigError, naming the file and the offset, for a file whose header or size is not as the format requires.
LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::string& name);

/// Throws ConfigError when the format cannot count so many tokens.
std::string llmc_header(const LlmcHeader& header);

TokenType type_of(TokenFormat format);

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

/// The header of an index. `num_documents` does not count the entry at the end. Throws ConfigError for a type that the
/// format has no code for.
std::string megatron_header(TokenType type, std::int64_t num_sequences, std::int64_t num_documents);

}  // namespace tessera::tokens
