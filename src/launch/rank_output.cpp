#include "launch/rank_output.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::launch {
namespace {

constexpr std::string_view kWhat = "what():";
constexpr std::string_view kOurs = "tessera: ";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

}  // namespace

void OutputTail::add(Stream stream, std::string_view line) {
  const bool cut = line.size() > kMaxLineBytes;
  lines_.push_back(std::string(line.substr(0, kMaxLineBytes)) + (cut ? " ..." : ""));
  if (lines_.size() > kMaxLines) lines_.pop_front();
  if (stream != Stream::kError) return;
  const std::string_view kept = line.substr(0, kMaxLineBytes);
  // The C++ runtime writes "what():" for an uncaught exception.
  if (const auto what = kept.find(kWhat); what != std::string_view::npos) {
    error_text_ = trimmed(kept.substr(what + kWhat.size()));
  } else if (kept.starts_with(kOurs)) {
    error_text_ = kept.substr(kOurs.size());
  }
}

void LineSplitter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find_first_of("\r\n");
    append(bytes.substr(0, end));
    if (end == std::string_view::npos) return;
    end_line(bytes[end]);
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::append(std::string_view bytes) {
  if (bytes.empty()) return;
  after_return_ = false;
  while (!bytes.empty()) {
    const auto piece = bytes.substr(0, kMaxBytes - partial_.size());
    partial_.append(piece);
    bytes.remove_prefix(piece.size());
    after_cut_ = partial_.size() == kMaxBytes;
    if (after_cut_) {
      take_(partial_);
      partial_.clear();
    }
  }
}

void LineSplitter::end_line(char ending) {
  // "\r\n" is one end; a piece that was just cut already had one.
  const bool nothing_to_end = partial_.empty() && (ending == '\r' || after_return_ || after_cut_);
  if (!nothing_to_end) take_(partial_);
  partial_.clear();
  after_return_ = ending == '\r';
  after_cut_ = false;
}

void LineSplitter::finish() {
  if (!partial_.empty()) take_(partial_);
  partial_.clear();
}

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

/// One of six colours that can be read on light and on dark backgrounds.
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

namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

Descriptor open_log(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0666;  // as the umask allows
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file) throw StorageError("the log file " + path.string() + " cannot be made: " + std::strerror(errno));
  return file;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) throw StorageError("the log folder " + folder.string() + " cannot be made: " + fault.message());
}

}  // namespace

RankOutput::RankOutput(int rank, const OutputPlan& plan, Console& console)
    : rank_(rank),
      console_(console),
      lines_{LineSplitter([this](std::string_view line) { take(Stream::kOutput, line); }),
             LineSplitter([this](std::string_view line) { take(Stream::kError, line); })} {
  for (Pipe& one : pipes_) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw CommError(std::string("no pipe can be made: ") + strerror(errno));
    one.read_end = Descriptor(ends[0]);
    one.write_end = Descriptor(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  pipe(Stream::kOutput).shown = plan.shows_output;
  pipe(Stream::kError).shown = plan.shows_errors;
  if (plan.log_folder.empty()) return;
  make_folder(plan.log_folder);
  pipe(Stream::kOutput).log = open_log(plan.log_folder / "stdout.log");
  pipe(Stream::kError).log = open_log(plan.log_folder / "stderr.log");
}

void RankOutput::close_write_ends() {
  for (Pipe& one : pipes_) one.write_end.reset();
}

void RankOutput::read_some(Stream stream) {
  Pipe& from = pipe(stream);
  // The rank gets SIGPIPE, as if it wrote to the console itself.
  if (from.shown && !from.log && console_.is_broken(stream)) close(stream);
  if (!from.read_end) return;
  std::array<char, kReadBytes> block{};
  const ssize_t count = read(from.read_end.get(), block.data(), block.size());
  if (count < 0) return;
  if (count == 0) {
    close(stream);
    return;
  }
  const std::string_view bytes(block.data(), static_cast<std::size_t>(count));
  keep(stream, bytes);
  lines(stream).add(bytes);
}

void RankOutput::finish() {
  constexpr int kMaxReads = 64;  // four times what a pipe can hold unless it was made larger
  for (const Stream stream : kStreams) {
    for (int reads = 0; reads < kMaxReads && descriptor(stream) >= 0; ++reads) read_some(stream);
    close(stream);
  }
}

void RankOutput::take(Stream stream, std::string_view line) {
  tail_.add(stream, line);
  if (pipe(stream).shown) console_.add_line(stream, rank_, line);
}

void RankOutput::keep(Stream stream, std::string_view bytes) {
  Descriptor& log = pipe(stream).log;
  while (log && !bytes.empty()) {
    const ssize_t written = write(log.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      // A full disk should not end a training run.
      console_.add_note("tessera run: a log of rank " + std::to_string(rank_) +
                        " ends here, it cannot be written: " + std::strerror(errno));
      log.reset();
    }
  }
}

void RankOutput::close(Stream stream) {
  if (!pipe(stream).read_end) return;
  pipe(stream).read_end.reset();
  lines(stream).finish();
}

}  // namespace tessera::launch
