#pragma once

#include <tessera/tokens/token_file.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera::tokens {

/// What the 256 numbers before the tokens of an llm.c file say.
struct LlmcHeader {
  static constexpr std::size_t kNumBytes = 1024;

  TokenFormat format{};
  std::int64_t num_tokens = 0;
};

/// Whether the file begins as one of llm.c's does.
bool is_llmc(std::span<const std::byte> bytes);

/// Throws ConfigError, naming the file and the offset, for a file that is no such file from its first byte to its last.
LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::string& name);

/// Throws ConfigError when the format cannot count so many tokens.
std::string llmc_header(const LlmcHeader& header);

TokenType type_of(TokenFormat format);

}  // namespace tessera::tokens
