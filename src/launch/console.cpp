#include "launch/console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

namespace tessera::launch {
namespace {

constexpr std::size_t kFullBytes = std::size_t{1} << 20;

bool wants_colour(int descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool refused = no_colour != nullptr && *no_colour != '\0';
  return !refused && terminal != nullptr && std::string_view(terminal) != "dumb" && isatty(descriptor) == 1;
}

/// Six that can be read on light and on dark.
std::string colour_of(int rank) {
  constexpr std::array kColours = {"36", "33", "32", "35", "34", "31"};
  return std::string("\033[") + kColours.at(static_cast<std::size_t>(rank) % kColours.size()) + "m";
}

}  // namespace

Console::Console() : states_{open(STDOUT_FILENO), open(STDERR_FILENO)} {}

Console::State Console::open(int descriptor) {
  struct stat status{};
  State state;
  state.descriptor = descriptor;
  state.coloured = wants_colour(descriptor);
  state.whole = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  return state;
}

void Console::add_line(Stream stream, int rank, std::string_view line) {
  State& to = state(stream);
  if (to.broken) return;
  const std::string prefix = "[rank " + std::to_string(rank) + "]";
  to.queue += to.coloured ? colour_of(rank) + prefix + "\033[0m" : prefix;
  if (!line.empty()) to.queue.append(" ").append(line);
  to.queue += '\n';
}

void Console::add_note(std::string_view line) {
  State& to = state(Stream::kError);
  if (!to.broken) to.queue.append(line).append("\n");
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
}

}  // namespace tessera::launch
