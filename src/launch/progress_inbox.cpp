#include "launch/progress_inbox.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tessera::launch {
namespace {

constexpr std::size_t kMaxLineBytes = 1000;

/// A program may write any bytes to the pipe; only the launcher may send escapes to the terminal.
void make_printable(std::string& line) {
  std::replace_if(line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
}

}  // namespace

ProgressInbox::ProgressInbox() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw CommError(std::string("no pipe can be made: ") + std::strerror(errno));
  }
  read_end_ = Descriptor(ends[0]);
  write_end_ = Descriptor(ends[1]);
}

std::string ProgressInbox::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(write_end_.get());
}

std::optional<std::string> ProgressInbox::take() {
  std::array<char, 4096> block{};
  const ssize_t count = read(read_end_.get(), block.data(), block.size());
  if (count <= 0) return std::nullopt;
  partial_.append(block.data(), static_cast<std::size_t>(count));
  const auto end = partial_.rfind('\n');
  if (end == std::string::npos) {
    if (partial_.size() > kMaxLineBytes) partial_.clear();
    return std::nullopt;
  }
  const auto before = end == 0 ? std::string::npos : partial_.rfind('\n', end - 1);
  const auto start = before == std::string::npos ? 0 : before + 1;
  std::string line = partial_.substr(start, std::min(end - start, kMaxLineBytes));
  partial_.erase(0, end + 1);
  make_printable(line);
  return line;
}

}  // namespace tessera::launch
