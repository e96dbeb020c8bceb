#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>
#include <tessera/tokens/token_writer.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "tokens/token_file_state.h"
#include "tokens/token_formats.h"

namespace tessera::tokens {

/// A file that is written from its beginning to its end, through a buffer. It appears as an AtomicFile does.
class AppendedFile {
 public:
  explicit AppendedFile(const std::filesystem::path& path) : file_(path) {}

  void append(std::span<const std::byte> bytes);
  void append(const std::string& text) { append(std::as_bytes(std::span(text))); }
  /// Replaces bytes that were appended before.
  void overwrite(std::uint64_t offset, const std::string& text);
  /// Everything is on disk after this.
  void sync();
  /// Requires: sync(). Replaces a file of that name.
  void publish() { file_.publish(); }

 private:
  void flush();

  AtomicFile file_;
  std::string buffer_;
  std::uint64_t num_written_ = 0;
};

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

void AppendedFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) {
    file_.write_at(num_written_, bytes);
    num_written_ += bytes.size();
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void AppendedFile::overwrite(std::uint64_t offset, const std::string& text) {
  flush();
  file_.write_at(offset, std::as_bytes(std::span(text)));
}

void AppendedFile::flush() {
  file_.write_at(num_written_, std::as_bytes(std::span(buffer_)));
  num_written_ += buffer_.size();
  buffer_.clear();
}

void AppendedFile::sync() {
  flush();
  file_.sync();
}

}  // namespace tessera::tokens

namespace tessera {
namespace {

using std::to_string;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

void check_tokens(std::span<const std::int64_t> tokens, TokenType type, std::int64_t document) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] <= largest_token(type)) continue;
    throw ConfigError("token " + to_string(i) + " of document " + to_string(document) + " is " + to_string(tokens[i]) +
                      ", and the file holds " + std::string(to_string(type)) + ", 0 to " +
                      to_string(largest_token(type)) + ": choose another type or format");
  }
}

template <class T>
void append_numbers(tokens::AppendedFile& file, const std::vector<T>& numbers) {
  file.append(std::as_bytes(std::span(numbers)));
}

}  // namespace

struct TokenFileWriter::State {
  State(const std::filesystem::path& path, TokenFormat its_format, TokenType its_type)
      : paths(token_file_paths(path, its_format)), format(its_format), type(its_type), data(paths[0]) {
    if (format == TokenFormat::kMegatron) {
      index.emplace(paths[1]);
    } else {
      data.append(tokens::llmc_header({format, 0}));
    }
  }

  void write_index();

  std::vector<std::filesystem::path> paths;
  TokenFormat format;
  TokenType type;
  tokens::AppendedFile data;
  std::optional<tokens::AppendedFile> index;
  std::vector<std::int32_t> lengths;
  std::vector<std::byte> narrowed;
  std::int64_t num_tokens = 0;
  std::int64_t num_documents = 0;
  bool finished = false;
};

void TokenFileWriter::State::write_index() {
  const auto num_sequences = static_cast<std::int64_t>(lengths.size());
  index->append(tokens::megatron_header(type, num_sequences, num_sequences));
  append_numbers(*index, lengths);
  std::vector<std::int64_t> numbers;
  std::int64_t begin = 0;
  for (const std::int32_t length : lengths) {
    numbers.push_back(begin);
    begin += static_cast<std::int64_t>(length) * static_cast<std::int64_t>(bytes_of(type));
  }
  append_numbers(*index, numbers);
  numbers.clear();
  for (std::int64_t document = 0; document <= num_sequences; ++document) numbers.push_back(document);
  append_numbers(*index, numbers);
  index->sync();
}

std::vector<std::filesystem::path> token_file_paths(const std::filesystem::path& path, TokenFormat format) {
  if (format != TokenFormat::kMegatron) return {path};
  std::filesystem::path prefix = path;
  if (path.extension() == ".bin" || path.extension() == ".idx") prefix.replace_extension();
  std::filesystem::path data = prefix;
  return {data += ".bin", prefix += ".idx"};
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, TokenFormat format, TokenType type) {
  if (format == TokenFormat::kMegatron) {
    tokens::megatron_header(type, 0, 0);  // refuses a type without a code before anything is written
  } else if (type != tokens::type_of(format)) {
    throw ConfigError("the format " + std::string(to_string(format)) + " holds " +
                      std::string(to_string(tokens::type_of(format))) + ", not " + std::string(to_string(type)));
  }
  state_ = std::make_unique<State>(path, format, type);
}

TokenFileWriter::~TokenFileWriter() = default;
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;

void TokenFileWriter::add_document(std::span<const std::int64_t> tokens) {
  if (state_->finished) throw ConfigError("a document was added to " + state_->paths[0].string() + " after finish()");
  check_tokens(tokens, state_->type, state_->num_documents);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const bool counts_all = state_->format != TokenFormat::kMegatron;
  if (count > kMostTokens || (counts_all && count > kMostTokens - state_->num_tokens)) {
    throw ConfigError(state_->paths[0].string() + ": the format " + std::string(to_string(state_->format)) +
                      " counts 2,147,483,647 tokens at most in a " + (counts_all ? "file" : "document") +
                      "; write several");
  }
  state_->narrowed.resize(tokens.size() * bytes_of(state_->type));
  tokens::narrow(state_->type, tokens, state_->narrowed.data());
  state_->data.append(state_->narrowed);
  if (state_->index) state_->lengths.push_back(static_cast<std::int32_t>(count));
  state_->num_tokens += count;
  ++state_->num_documents;
}

std::int64_t TokenFileWriter::num_tokens() const { return state_->num_tokens; }
std::int64_t TokenFileWriter::num_documents() const { return state_->num_documents; }

void TokenFileWriter::finish() {
  if (state_->finished) return;
  if (state_->index) {
    state_->write_index();
    state_->data.sync();
    // An old index beside new tokens would be read as a damaged pair.
    if (unlink(state_->paths[1].c_str()) != 0 && errno != ENOENT) {
      throw StorageError(state_->paths[1].string() + " cannot be replaced: " + std::strerror(errno));
    }
    state_->data.publish();
    state_->index->publish();
  } else {
    state_->data.overwrite(0, tokens::llmc_header({state_->format, state_->num_tokens}));
    state_->data.sync();
    state_->data.publish();
  }
  sync_folder(state_->paths[0].parent_path());
  state_->finished = true;
}

}  // namespace tessera
