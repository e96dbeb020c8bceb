#include "observe/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace tessera::observe {
namespace {

constexpr std::size_t kUsualWidth = 80;
constexpr std::string_view kGap = "  ";

/// Nobody may be there to read, and that is no reason to fail.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
}

/// Without what does not fit: whole parts of the line, if it has such.
std::string cut_to(const std::string& line, std::size_t width) {
  if (line.size() <= width) return line;
  return line.substr(0, std::min(width, line.rfind(kGap, width)));
}

std::size_t launchers_width() {
  const char* text = std::getenv("TESSERA_PROGRESS_WIDTH");
  std::size_t width = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), width);
  return width;
}

/// Does not block: a launcher that is stopped reads nothing, and a line that is missed is replaced by the next.
Descriptor launchers_pipe() {
  const char* path = std::getenv("TESSERA_PROGRESS");
  return Descriptor(path == nullptr ? -1 : open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
}

bool understands_escapes() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

std::shared_ptr<Terminal> Terminal::of_process(bool wanted) {
  if (wanted && isatty(STDERR_FILENO) == 1 && understands_escapes()) {
    return std::make_shared<Terminal>(Kind::kOwn, Descriptor(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)));
  }
  Descriptor pipe = wanted ? launchers_pipe() : Descriptor();
  const std::size_t width = launchers_width();
  if (pipe && width > 0) return std::make_shared<Terminal>(Kind::kLaunchers, std::move(pipe), width);
  return std::make_shared<Terminal>(Kind::kNone, Descriptor());
}

Terminal::Terminal(Kind kind, Descriptor line, std::size_t launchers_width)
    : kind_(kind), line_(std::move(line)), launchers_width_(launchers_width) {}

std::size_t Terminal::full_width() const {
  if (kind_ == Kind::kLaunchers) return launchers_width_;
  winsize size{};
  const bool known = ioctl(line_.get(), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  // The last column stays free: a terminal whose last column is written to may begin a new line.
  return (known ? size.ws_col : kUsualWidth) - 1;
}

std::size_t Terminal::room_beside_note() const {
  const std::size_t taken = note_.empty() ? 0 : note_.size() + kGap.size();
  return full_width() - std::min(full_width(), taken);
}

std::size_t Terminal::width() const {
  const std::lock_guard lock(mutex_);
  return room_beside_note();
}

void Terminal::draw(const std::string& line) {
  const std::lock_guard lock(mutex_);
  drawn_ = line;
  show();
}

void Terminal::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  note_ = text;
  show();
}

void Terminal::show() {
  if (kind_ == Kind::kNone) return;
  std::string line = cut_to(drawn_, room_beside_note());
  if (!line.empty() && !note_.empty()) line += kGap;
  line = (line + note_).substr(0, full_width());
  if (line == shown_) return;
  shown_ = line;
  write_all(line_.get(), kind_ == Kind::kOwn ? "\r" + line + "\033[K" : line + "\n");
}

void Terminal::print(int descriptor, std::string_view line) {
  const std::lock_guard lock(mutex_);
  erase();
  write_all(descriptor, std::string(line) + "\n");
  if (kind_ == Kind::kOwn) write_all(line_.get(), shown_);
}

void Terminal::leave() {
  const std::lock_guard lock(mutex_);
  note_.clear();
  show();
  if (shown_.empty()) return;
  write_all(line_.get(), "\n");
  // The launcher's place is free again; the last state stays, as an ordinary line.
  if (kind_ == Kind::kLaunchers) write_all(STDERR_FILENO, shown_ + "\n");
  drawn_.clear();
  shown_.clear();
}

void Terminal::erase() const {
  if (kind_ == Kind::kOwn && !shown_.empty()) write_all(line_.get(), "\r\033[K");
}

}  // namespace tessera::observe
