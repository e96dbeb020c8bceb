#include "tokens/llmc_header.h"

#include <array>
#include <limits>

#include "tokens/byte_reader.h"

namespace tessera::tokens {
namespace {

using std::to_string;

struct Kind {
  TokenFormat format;
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr std::array kKinds = {Kind{TokenFormat::kLlmcGpt2, 20240520, 1, TokenType::kUint16},
                               Kind{TokenFormat::kLlmcLlama3, 20240801, 7, TokenType::kUint32}};
constexpr std::size_t kNumberBytes = 4;

const Kind* find_magic(std::int32_t magic) {
  for (const Kind& kind : kKinds) {
    if (kind.magic == magic) return &kind;
  }
  return nullptr;
}

const Kind& kind_of(TokenFormat format) {
  for (const Kind& kind : kKinds) {
    if (kind.format == format) return kind;
  }
  throw InternalError(std::string(to_string(format)) + " is no format of llm.c");
}

}  // namespace

bool is_llmc(std::span<const std::byte> bytes) {
  return bytes.size() >= kNumberBytes && find_magic(number_at<std::int32_t>(bytes, 0)) != nullptr;
}

LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < LlmcHeader::kNumBytes) {
    refuse(name, bytes.size(), "a header of " + to_string(LlmcHeader::kNumBytes) + " bytes", "the end of the file");
  }
  const auto magic = number_at<std::int32_t>(bytes, 0);
  const Kind* kind = find_magic(magic);
  if (kind == nullptr) refuse(name, 0, "the magic number 20240520 (GPT-2) or 20240801 (Llama 3)", to_string(magic));
  const auto version = number_at<std::int32_t>(bytes, kNumberBytes);
  if (version != kind->version) refuse(name, kNumberBytes, "version " + to_string(kind->version), to_string(version));
  const auto num_tokens = number_at<std::int32_t>(bytes, 2 * kNumberBytes);
  if (num_tokens < 0) refuse(name, 2 * kNumberBytes, "a number of tokens from 0 up", to_string(num_tokens));
  for (std::size_t offset = 3 * kNumberBytes; offset < LlmcHeader::kNumBytes; offset += kNumberBytes) {
    const auto rest = number_at<std::int32_t>(bytes, offset);
    if (rest != 0) refuse(name, offset, "0 in the unused part of the header", to_string(rest));
  }
  const std::uint64_t expected = LlmcHeader::kNumBytes + static_cast<std::uint64_t>(num_tokens) * bytes_of(kind->type);
  if (bytes.size() != expected) {
    refuse(name, 2 * kNumberBytes,
           "a file of " + to_string(expected) + " bytes for " + to_string(num_tokens) + " tokens",
           to_string(bytes.size()) + " bytes");
  }
  return {kind->format, num_tokens};
}

std::string llmc_header(const LlmcHeader& header) {
  if (header.num_tokens > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError("llm.c's format counts 2,147,483,647 tokens at most, found " + to_string(header.num_tokens) +
                      ": write several files, or Megatron's format");
  }
  const Kind& kind = kind_of(header.format);
  const std::array<std::int32_t, 3> numbers{kind.magic, kind.version, static_cast<std::int32_t>(header.num_tokens)};
  std::string text(LlmcHeader::kNumBytes, '\0');
  std::memcpy(text.data(), numbers.data(), sizeof(numbers));
  return text;
}

TokenType type_of(TokenFormat format) { return kind_of(format).type; }

}  // namespace tessera::tokens
