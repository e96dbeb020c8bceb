#pragma once

#include <tessera/tokens/token_file.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

/// Writes a token file, document after document. Nothing appears under its name before `finish()`, and then all of it
/// does: the bytes are brought to the disk first (fsync), then a rename replaces what was there. Of a Megatron pair a
/// reader sees the former pair, no index, or the new pair.
/// A process that is killed leaves hidden files .NAME.PROCESS-NUMBER.tmp behind, which nothing reads.
/// Thread-safety: one thread.
class TokenFileWriter {
 public:
  /// `path`: for Megatron PREFIX, PREFIX.bin or PREFIX.idx; for llm.c the file. llm.c's formats have one type each.
  /// Throws ConfigError when the format has no such type, StorageError when no file can be created there.
  TokenFileWriter(const std::filesystem::path& path, TokenFormat format, TokenType type);
  /// Without `finish()` it removes what was written.
  ~TokenFileWriter();
  TokenFileWriter(TokenFileWriter&&) noexcept;
  TokenFileWriter& operator=(TokenFileWriter&&) noexcept;

  /// One document, one sequence. Throws ConfigError when a token does not fit the type, or when there are more than
  /// the format can count (2^31 - 1 in a document of Megatron's, or in a file of llm.c's).
  void add_document(std::span<const std::int64_t> tokens);

  std::int64_t num_tokens() const;
  std::int64_t num_documents() const;

  /// Puts the files in place. No document may follow. Blocks: until the disk has them. Throws StorageError.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The files that a writer with this path would make, those with the tokens first.
std::vector<std::filesystem::path> token_file_paths(const std::filesystem::path& path, TokenFormat format);

}  // namespace tessera
