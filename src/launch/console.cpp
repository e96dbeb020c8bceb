#include "launch/console.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

namespace tessera::launch {
namespace {

constexpr std::size_t kFullBytes = std::size_t{1} << 20;

bool is_terminal(int descriptor) {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb" && isatty(descriptor) == 1;
}

bool refuses_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return no_colour != nullptr && *no_colour != '\0';
}

bool is_same_device(int a, int b) {
  struct stat one{};
  struct stat other{};
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_rdev == other.st_rdev;
}

/// Six that can be read on light and on dark.
std::string colour_of(int rank) {
  constexpr std::array kColours = {"36", "33", "32", "35", "34", "31"};
  return std::string("\033[") + kColours.at(static_cast<std::size_t>(rank) % kColours.size()) + "m";
}

}  // namespace

Console::Console()
    : states_{open(STDOUT_FILENO), open(STDERR_FILENO)},
      one_terminal_(state(Stream::kOutput).terminal && state(Stream::kError).terminal &&
                    is_same_device(STDOUT_FILENO, STDERR_FILENO)) {}

Console::State Console::open(int descriptor) {
  struct stat status{};
  State state;
  state.descriptor = descriptor;
  state.terminal = is_terminal(descriptor);
  state.coloured = state.terminal && !refuses_colour();
  state.whole = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  return state;
}

void Console::add_line(Stream stream, int rank, std::string_view line) {
  State& to = queue_of(stream);
  if (to.broken) return;
  erase_progress(to);
  const std::string prefix = "[rank " + std::to_string(rank) + "]";
  to.queue += to.coloured ? colour_of(rank) + prefix + "\033[0m" : prefix;
  if (!line.empty()) to.queue.append(" ").append(line);
  to.queue += '\n';
}

void Console::add_note(std::string_view line) {
  State& to = state(Stream::kError);
  if (to.broken) return;
  erase_progress(to);
  to.queue.append(line).append("\n");
}

std::size_t Console::progress_width() const {
  constexpr std::size_t kUsualWidth = 80;
  const State& to = state(Stream::kError);
  winsize size{};
  if (!to.terminal) return 0;
  const bool known = ioctl(to.descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : kUsualWidth) - 1;  // a full last column may begin a new line
}

void Console::set_progress(const std::string& line) {
  if (!state(Stream::kError).terminal) return;
  progress_ = line;
  draw_progress();
}

void Console::erase_progress(State& to) {
  if (drawn_.empty() || !to.terminal) return;
  to.queue += "\r\033[K";
  drawn_.clear();
}

void Console::draw_progress() {
  State& to = state(Stream::kError);
  if (to.broken || drawn_ == progress_ || has_pending()) return;
  to.queue += "\r" + progress_.substr(0, progress_width()) + "\033[K";
  drawn_ = progress_;
}

bool Console::has_pending() const { return has_pending(Stream::kOutput) || has_pending(Stream::kError); }

bool Console::is_full() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const State& one) { return one.pending().size() > kFullBytes; });
}

void Console::write_some(Stream stream) {
  State& to = state(stream);
  // A pipe that can be written to takes at least PIPE_BUF bytes.
  const std::string_view bytes = to.whole ? to.pending() : to.pending().substr(0, PIPE_BUF);
  const ssize_t written = write(to.descriptor, bytes.data(), bytes.size());
  if (written >= 0) {
    to.num_written += static_cast<std::size_t>(written);
  } else if (errno != EINTR && errno != EAGAIN) {
    to.broken = true;
    to.num_written = to.queue.size();
  }
  if (to.num_written * 2 >= to.queue.size()) {
    to.queue.erase(0, to.num_written);
    to.num_written = 0;
  }
  draw_progress();
}

}  // namespace tessera::launch
