#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// How a token lies in a file. All are little-endian.
enum class TokenType { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

/// "uint16" and so on; throws ConfigError for anything else.
TokenType parse_token_type(std::string_view name);
std::string_view to_string(TokenType type);

std::size_t bytes_of(TokenType type);
/// The largest token that the type holds; the smallest is 0.
std::int64_t largest_token(TokenType type);

/// What Megatron's own tools choose: uint16 for vocabularies below 65,500, else int32.
TokenType token_type_for(std::int64_t vocabulary_size);

/// docs/formats/token_files.md describes them.
enum class TokenFormat {
  kMegatron,    ///< PREFIX.bin beside PREFIX.idx, any TokenType but uint32, with documents
  kLlmcGpt2,    ///< llm.c's .bin for GPT-2: uint16
  kLlmcLlama3,  ///< llm.c's .bin for Llama 3: uint32
};

/// "megatron", "llmc-gpt2" or "llmc-llama3"; throws ConfigError for anything else.
TokenFormat parse_token_format(std::string_view name);
std::string_view to_string(TokenFormat format);

/// Tokens in a file, mapped into memory: opening reads the index (or the header), never the tokens.
/// A handle: cheap to copy; the last copy unmaps.
///
/// Requires: the files keep their size while they are open. A file that is cut short ends the program (SIGBUS), which
/// no reader of mapped files can prevent; TokenFileWriter replaces files instead of changing them.
/// Thread-safety: all members may be called from any thread.
class TokenFile {
 public:
  /// `path` is an llm.c file, or one of PREFIX, PREFIX.idx and PREFIX.bin of a Megatron pair. For PREFIX.bin the
  /// content decides: llm.c's file has a magic number, Megatron's has an index beside it.
  /// Throws StorageError when a file cannot be read, and ConfigError naming file, offset, what was expected and what
  /// was found when it is malformed. Every entry of an index is checked: 20 bytes for each document are read.
  static TokenFile open(const std::filesystem::path& path);

  struct State;
  explicit TokenFile(std::shared_ptr<const State> state);

  const std::string& path() const;  ///< of the file with the tokens
  TokenFormat format() const;
  TokenType type() const;
  std::int64_t num_tokens() const;

  /// Whether the file records where documents begin. llm.c's does not.
  bool has_documents() const;
  /// Without an index: 0.
  std::int64_t num_documents() const;
  /// Sequences of Megatron's index; a document is one or more of them. Without an index: 0.
  std::int64_t num_sequences() const;

  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  /// The tokens of a document. Throws ConfigError when there is no such document.
  Range document(std::int64_t index) const;

  /// Copies tokens from `begin` on, as many as `to` has room for. Throws ConfigError when the file does not have as
  /// many.
  void read(std::int64_t begin, std::span<std::int64_t> to) const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace tessera
