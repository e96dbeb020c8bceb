#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tokens/token_file_state.h"
#include "tokens/token_formats.h"

namespace tessera::tokens {
namespace {

// The copies of single numbers become plain loads and stores, which the compiler turns into vector instructions.
template <class T>
void widen_from(const std::byte* __restrict from, std::int64_t* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<std::int64_t>(token);  // NOLINT: an int8 keeps its sign
  }
}

template <class T>
void narrow_to(const std::int64_t* __restrict from, std::byte* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T token = static_cast<T>(from[i]);
    std::memcpy(to + i * sizeof(T), &token, sizeof(T));
  }
}

/// Calls `function` with a number of the type that tokens have in the file.
template <class Function>
void with_number(TokenType type, Function function) {
  switch (type) {
    case TokenType::kUint8:
      return function(std::uint8_t{});
    case TokenType::kInt8:
      return function(std::int8_t{});
    case TokenType::kInt16:
      return function(std::int16_t{});
    case TokenType::kUint16:
      return function(std::uint16_t{});
    case TokenType::kInt32:
      return function(std::int32_t{});
    case TokenType::kUint32:
      return function(std::uint32_t{});
    case TokenType::kInt64:
      return function(std::int64_t{});
  }
}

}  // namespace

void widen(TokenType type, const std::byte* from, std::span<std::int64_t> to) {
  with_number(type, [&](auto number) { widen_from<decltype(number)>(from, to.data(), to.size()); });
}

void narrow(TokenType type, std::span<const std::int64_t> from, std::byte* to) {
  with_number(type, [&](auto number) { narrow_to<decltype(number)>(from.data(), to, from.size()); });
}

}  // namespace tessera::tokens

namespace tessera {
namespace {

struct Facts {
  TokenType type;
  std::string_view name;
  std::size_t num_bytes;
  std::int64_t largest;
};

constexpr std::array kFacts = {
    Facts{TokenType::kUint8, "uint8", 1, std::numeric_limits<std::uint8_t>::max()},
    Facts{TokenType::kInt8, "int8", 1, std::numeric_limits<std::int8_t>::max()},
    Facts{TokenType::kInt16, "int16", 2, std::numeric_limits<std::int16_t>::max()},
    Facts{TokenType::kUint16, "uint16", 2, std::numeric_limits<std::uint16_t>::max()},
    Facts{TokenType::kInt32, "int32", 4, std::numeric_limits<std::int32_t>::max()},
    Facts{TokenType::kUint32, "uint32", 4, std::numeric_limits<std::uint32_t>::max()},
    Facts{TokenType::kInt64, "int64", 8, std::numeric_limits<std::int64_t>::max()},
};
constexpr std::int64_t kSmallVocabulary = 65'500;

const Facts& facts_of(TokenType type) {
  for (const Facts& facts : kFacts) {
    if (facts.type == type) return facts;
  }
  throw InternalError("a token type without a name: " + std::to_string(static_cast<int>(type)));
}

}  // namespace

TokenType parse_token_type(std::string_view name) {
  std::string known;
  for (const Facts& facts : kFacts) {
    if (facts.name == name) return facts.type;
    known += (known.empty() ? "" : ", ") + std::string(facts.name);
  }
  throw ConfigError("\"" + std::string(name) + "\" is no type of tokens; expected one of " + known);
}

std::string_view to_string(TokenType type) { return facts_of(type).name; }
std::size_t bytes_of(TokenType type) { return facts_of(type).num_bytes; }
std::int64_t largest_token(TokenType type) { return facts_of(type).largest; }

TokenType token_type_for(std::int64_t vocabulary_size) {
  return vocabulary_size < kSmallVocabulary ? TokenType::kUint16 : TokenType::kInt32;
}

namespace {

using std::to_string;

constexpr std::array<std::pair<std::string_view, TokenFormat>, 3> kFormats = {{
    {"megatron", TokenFormat::kMegatron},
    {"llmc-gpt2", TokenFormat::kLlmcGpt2},
    {"llmc-llama3", TokenFormat::kLlmcLlama3},
}};

std::filesystem::path with_end(const std::filesystem::path& path, const char* end) {
  std::filesystem::path result = path;
  return result += end;
}

std::shared_ptr<TokenFile::State> open_megatron(const std::filesystem::path& index_path,
                                                std::unique_ptr<MappedFile> data) {
  auto index = std::make_unique<MappedFile>(index_path);
  auto state = tokens::megatron_state(index->bytes(), index->name(), data->bytes(), data->name());
  state->index_file = std::move(index);
  state->data_file = std::move(data);
  return state;
}

/// A .bin, or any other name that exists.
std::shared_ptr<TokenFile::State> open_data(const std::filesystem::path& path) {
  auto data = std::make_unique<MappedFile>(path);
  auto index_path = path;
  index_path.replace_extension(".idx");
  if (!tokens::is_llmc(data->bytes()) && path.extension() == ".bin" && std::filesystem::exists(index_path)) {
    return open_megatron(index_path, std::move(data));
  }
  auto state = tokens::llmc_state(data->bytes(), data->name());
  state->data_file = std::move(data);
  return state;
}

}  // namespace

TokenFormat parse_token_format(std::string_view name) {
  for (const auto& [known, format] : kFormats) {
    if (known == name) return format;
  }
  throw ConfigError("\"" + std::string(name) +
                    "\" is no format of token files; expected megatron, llmc-gpt2 or llmc-llama3");
}

std::string_view to_string(TokenFormat format) {
  for (const auto& [name, known] : kFormats) {
    if (known == format) return name;
  }
  throw InternalError("a token format without a name: " + to_string(static_cast<int>(format)));
}

namespace tokens {

std::shared_ptr<TokenFile::State> megatron_state(std::span<const std::byte> index, const std::string& index_name,
                                                 std::span<const std::byte> data, const std::string& data_name) {
  auto state = std::make_shared<TokenFile::State>();
  state->index.emplace(index, index_name, data.size(), data_name);
  state->path = data_name;
  state->format = TokenFormat::kMegatron;
  state->type = state->index->type();
  state->num_tokens = state->index->num_tokens();
  state->data = data;
  return state;
}

std::shared_ptr<TokenFile::State> llmc_state(std::span<const std::byte> data, const std::string& name) {
  const LlmcHeader header = read_llmc_header(data, name);
  auto state = std::make_shared<TokenFile::State>();
  state->path = name;
  state->format = header.format;
  state->type = type_of(header.format);
  state->num_tokens = header.num_tokens;
  state->data = data.subspan(LlmcHeader::kNumBytes);
  return state;
}

}  // namespace tokens

TokenFile TokenFile::open(const std::filesystem::path& path) {
  if (path.extension() == ".idx") {
    auto data_path = path;
    return TokenFile(open_megatron(path, std::make_unique<MappedFile>(data_path.replace_extension(".bin"))));
  }
  if (!std::filesystem::exists(path) && std::filesystem::exists(with_end(path, ".idx"))) {
    return TokenFile(open_megatron(with_end(path, ".idx"), std::make_unique<MappedFile>(with_end(path, ".bin"))));
  }
  return TokenFile(open_data(path));
}

TokenFile::TokenFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}

const std::string& TokenFile::path() const { return state_->path; }
TokenFormat TokenFile::format() const { return state_->format; }
TokenType TokenFile::type() const { return state_->type; }
std::int64_t TokenFile::num_tokens() const { return state_->num_tokens; }
bool TokenFile::has_documents() const { return state_->index.has_value(); }
std::int64_t TokenFile::num_documents() const { return state_->index ? state_->index->num_documents() : 0; }
std::int64_t TokenFile::num_sequences() const { return state_->index ? state_->index->num_sequences() : 0; }

TokenFile::Range TokenFile::document(std::int64_t index) const {
  if (index < 0 || index >= num_documents()) {
    throw ConfigError(path() + " has " + to_string(num_documents()) + " documents, and no document " +
                      to_string(index) + (has_documents() ? "" : ": files of llm.c do not tell where documents begin"));
  }
  return {state_->index->document_begin(index), state_->index->document_begin(index + 1)};
}

void TokenFile::read(std::int64_t begin, std::span<std::int64_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (begin < 0 || begin > num_tokens() || count > num_tokens() - begin) {
    throw ConfigError(path() + " has " + to_string(num_tokens()) + " tokens; asked for " + to_string(count) +
                      " from token " + to_string(begin) + " on");
  }
  if (count == 0) return;
  tokens::widen(type(), state_->data.data() + static_cast<std::size_t>(begin) * bytes_of(type()), to);
}

}  // namespace tessera
