#include "tokens/appended_file.h"

namespace tessera::tokens {
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
