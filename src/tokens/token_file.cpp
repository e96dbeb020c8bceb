#include <tessera/core/error.h>
#include <tessera/tokens/token_file.h>

#include <array>
#include <utility>

#include "tokens/llmc_header.h"
#include "tokens/token_file_state.h"
#include "tokens/widen.h"

namespace tessera {
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
