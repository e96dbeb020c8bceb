#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "tokens/token_formats.h"

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

namespace {

using std::to_string;

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kVersionAt = 9;
constexpr std::size_t kTypeAt = 17;
constexpr std::size_t kNumSequencesAt = 18;
constexpr std::size_t kNumDocumentsAt = 26;
constexpr std::size_t kHeaderBytes = 34;
constexpr std::uint64_t kLengthBytes = 4;
constexpr std::uint64_t kPointerBytes = 8;

struct Code {
  std::uint8_t code;
  TokenType type;
};
// 6 and 7 are floating point.
constexpr std::array kCodes = {Code{1, TokenType::kUint8}, Code{2, TokenType::kInt8},  Code{3, TokenType::kInt16},
                               Code{4, TokenType::kInt32}, Code{5, TokenType::kInt64}, Code{8, TokenType::kUint16}};

TokenType type_of_code(std::uint8_t code, const std::string& name) {
  for (const Code& one : kCodes) {
    if (one.code == code) return one.type;
  }
  refuse(name, kTypeAt, "the code of an integer type (1 to 5, or 8)", to_string(code));
}

}  // namespace

MegatronIndex::MegatronIndex(std::span<const std::byte> bytes, const std::string& name, std::uint64_t num_data_bytes,
                             const std::string& data_name)
    : bytes_(bytes) {
  read_header(name);
  check_documents(name);
  check_sequences(name, num_data_bytes, data_name);
}

void MegatronIndex::read_header(const std::string& name) {
  if (bytes_.size() < kHeaderBytes) {
    refuse(name, bytes_.size(), "a header of " + to_string(kHeaderBytes) + " bytes", "the end of the file");
  }
  if (std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
    refuse(name, 0, "\"MMIDIDX\" and two zero bytes", "something else; this is no index of Megatron");
  }
  const auto version = number_at<std::uint64_t>(bytes_, kVersionAt);
  if (version != kVersion) refuse(name, kVersionAt, "version 1", to_string(version));
  type_ = type_of_code(number_at<std::uint8_t>(bytes_, kTypeAt), name);

  const auto num_sequences = number_at<std::uint64_t>(bytes_, kNumSequencesAt);
  const auto num_entries = number_at<std::uint64_t>(bytes_, kNumDocumentsAt);
  // Bounds first: the products below must not wrap around.
  if (num_sequences > bytes_.size()) {
    refuse(name, kNumSequencesAt, "no more sequences than the file has bytes", to_string(num_sequences));
  }
  if (num_entries > bytes_.size() || num_entries == 0) {
    refuse(name, kNumDocumentsAt, "at least one entry of the list of documents, and no more than the file has bytes",
           to_string(num_entries));
  }
  const std::uint64_t expected =
      kHeaderBytes + num_sequences * (kLengthBytes + kPointerBytes) + num_entries * kPointerBytes;
  if (bytes_.size() == expected + num_sequences && num_sequences > 0) {
    refuse(name, expected, "the end of the file",
           "a mode for each of " + to_string(num_sequences) + " sequences: a multimodal dataset, which is not read");
  }
  if (bytes_.size() != expected) {
    refuse(name, kNumSequencesAt,
           "a file of " + to_string(expected) + " bytes for " + to_string(num_sequences) + " sequences and " +
               to_string(num_entries) + " document entries",
           to_string(bytes_.size()) + " bytes");
  }
  num_sequences_ = static_cast<std::int64_t>(num_sequences);
  num_documents_ = static_cast<std::int64_t>(num_entries) - 1;
  lengths_at_ = kHeaderBytes;
  pointers_at_ = lengths_at_ + num_sequences * kLengthBytes;
  documents_at_ = pointers_at_ + num_sequences * kPointerBytes;
}

void MegatronIndex::check_sequences(const std::string& name, std::uint64_t num_data_bytes,
                                    const std::string& data_name) {
  const std::uint64_t token_bytes = bytes_of(type_);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_sequences_); ++i) {
    const auto length = number_at<std::int32_t>(bytes_, lengths_at_ + i * kLengthBytes);
    const auto pointer = number_at<std::uint64_t>(bytes_, pointers_at_ + i * kPointerBytes);
    if (length < 0) refuse(name, lengths_at_ + i * kLengthBytes, "a length of 0 or more", to_string(length));
    if (pointer != end) {
      refuse(name, pointers_at_ + i * kPointerBytes,
             "sequence " + to_string(i) + " at byte " + to_string(end) + ", where the one before it ends",
             to_string(pointer));
    }
    end += static_cast<std::uint64_t>(length) * token_bytes;
    if (end > num_data_bytes) {
      refuse(data_name, num_data_bytes,
             "sequence " + to_string(i) + " of " + name + " to end at byte " + to_string(end), "the end of the file");
    }
  }
  if (end != num_data_bytes) {
    refuse(data_name, end, "the end of the file, where the last sequence of " + name + " ends",
           to_string(num_data_bytes - end) + " bytes more");
  }
  num_tokens_ = static_cast<std::int64_t>(end / token_bytes);
}

void MegatronIndex::check_documents(const std::string& name) const {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= num_documents_; ++i) {
    const std::int64_t first = first_sequence(i);
    const std::uint64_t offset = documents_at_ + static_cast<std::uint64_t>(i) * kPointerBytes;
    if (i == 0 && first != 0) refuse(name, offset, "the first document to begin with sequence 0", to_string(first));
    if (first < before || first > num_sequences_) {
      refuse(name, offset,
             "document entry " + to_string(i) + " from " + to_string(before) + " to " + to_string(num_sequences_),
             to_string(first));
    }
    before = first;
  }
  if (before != num_sequences_) {
    refuse(name, documents_at_ + static_cast<std::uint64_t>(num_documents_) * kPointerBytes,
           "the last document to end with the last of " + to_string(num_sequences_) + " sequences", to_string(before));
  }
}

std::int64_t MegatronIndex::first_sequence(std::int64_t document) const {
  return number_at<std::int64_t>(bytes_, documents_at_ + static_cast<std::size_t>(document) * kPointerBytes);
}

std::int64_t MegatronIndex::document_begin(std::int64_t document) const {
  const auto sequence = first_sequence(document);
  if (sequence == num_sequences_) return num_tokens_;
  const auto pointer =
      number_at<std::uint64_t>(bytes_, pointers_at_ + static_cast<std::size_t>(sequence) * kPointerBytes);
  return static_cast<std::int64_t>(pointer / bytes_of(type_));
}

std::string megatron_header(TokenType type, std::int64_t num_sequences, std::int64_t num_documents) {
  const auto* code = std::find_if(kCodes.begin(), kCodes.end(), [type](const Code& one) { return one.type == type; });
  if (code == kCodes.end()) {
    throw ConfigError("Megatron's format has no code for " + std::string(to_string(type)) +
                      "; use int32 or int64 for large vocabularies");
  }
  std::string header(kHeaderBytes, '\0');
  const std::int64_t num_entries = num_documents + 1;
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + kVersionAt, &kVersion, sizeof(kVersion));
  std::memcpy(header.data() + kTypeAt, &code->code, 1);
  std::memcpy(header.data() + kNumSequencesAt, &num_sequences, sizeof(num_sequences));
  std::memcpy(header.data() + kNumDocumentsAt, &num_entries, sizeof(num_entries));
  return header;
}

}  // namespace tessera::tokens
