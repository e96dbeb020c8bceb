#include "observe/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tessera::observe {
namespace {

constexpr const char* kWidthVariable = "TESSERA_TERMINAL_WIDTH";
constexpr std::size_t kUsualWidth = 80;

/// Nobody may be there to read, and that is no reason to fail.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
}

std::size_t launchers_width() {
  const char* text = std::getenv(kWidthVariable);
  std::size_t width = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), width);
  return width;
}

bool understands_escapes() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

Terminal::Kind Terminal::kind_of_process() {
  if (isatty(STDERR_FILENO) == 1) return understands_escapes() ? Kind::kOwn : Kind::kNone;
  return launchers_width() > 0 ? Kind::kLaunchers : Kind::kNone;
}

std::size_t Terminal::width() const {
  if (kind_ == Kind::kLaunchers) return std::max<std::size_t>(launchers_width(), 1);
  winsize size{};
  const bool known = ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // The last column stays free: a terminal whose last column is written to may begin a new line.
  return known ? std::max<std::size_t>(size.ws_col - 1, 1) : kUsualWidth - 1;
}

void Terminal::draw(const std::string& line) {
  if (kind_ == Kind::kNone) return;
  const std::lock_guard lock(mutex_);
  if (line == shown_) return;
  shown_ = line;
  write_all(descriptor_, kind_ == Kind::kOwn ? "\r" + line + "\033[K" : line + "\r");
}

void Terminal::print(int descriptor, std::string_view line) {
  const std::lock_guard lock(mutex_);
  erase();
  write_all(descriptor, std::string(line) + "\n");
  if (kind_ == Kind::kOwn) write_all(descriptor_, shown_);
}

void Terminal::leave() {
  const std::lock_guard lock(mutex_);
  if (shown_.empty()) return;
  // The launcher's place for it becomes free again; the last state stays, as an ordinary line.
  write_all(descriptor_, kind_ == Kind::kOwn ? "\n" : shown_ + "\n");
  shown_.clear();
}

void Terminal::erase() const {
  if (kind_ == Kind::kOwn && !shown_.empty()) write_all(descriptor_, "\r\033[K");
}

}  // namespace tessera::observe
