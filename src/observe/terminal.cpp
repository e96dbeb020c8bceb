#include "observe/terminal.h"

#include <tessera/observe/transfer_line.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <mutex>
#include <string_view>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "observe/output_file.h"

namespace tessera::observe {
namespace {

constexpr std::size_t kUsualWidth = 80;
constexpr std::string_view kGap = "  ";

/// Ignores errors: it is no failure when nobody reads the output.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
}

/// Cuts the line to `width`, if possible between two of its parts.
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

/// Does not block: a launcher that is stopped reads nothing, and a lost line is replaced by the next.
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
  // This frees the launcher's progress line; the last state stays, as an ordinary line.
  if (kind_ == Kind::kLaunchers) write_all(STDERR_FILENO, shown_ + "\n");
  drawn_.clear();
  shown_.clear();
}

void Terminal::erase() const {
  if (kind_ == Kind::kOwn && !shown_.empty()) write_all(line_.get(), "\r\033[K");
}

namespace {

std::string formatted(const char* format, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

/// Three significant digits.
std::string three_digits(double number) {
  return formatted(number < 9.995 ? "%.2f" : number < 99.95 ? "%.1f" : "%.0f", number);
}

std::string two_digits(std::int64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); }

struct Piece {
  std::string text;
  int importance;  // the smallest is left out first
};

std::string joined(const std::vector<Piece>& pieces) {
  std::string line;
  for (const Piece& piece : pieces) line += (line.empty() ? "" : "  ") + piece.text;
  return line;
}

std::string step_text(const StepSummary& summary, const RunDescription& run) {
  std::string text = "step " + std::to_string(summary.last.step);
  if (run.total_steps <= 0) return text;
  const double share = static_cast<double>(summary.last.step) / static_cast<double>(run.total_steps);
  return text + "/" + std::to_string(run.total_steps) + " " + formatted("%.0f%%", std::floor(100 * share));
}

}  // namespace

std::string count_text(double count) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, name] : kUnits) {
    if (count >= 0.9995 * unit) return three_digits(count / unit) + name;
  }
  return formatted("%.0f", count);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr double kGigabyte = 1e9;
  const auto number = static_cast<double>(bytes);
  if (number >= 0.9995 * kGigabyte) return three_digits(number / kGigabyte) + " GB";
  return formatted("%.0f MB", number / 1e6);
}

std::string transfer_text(const std::string& title, std::uint64_t done, std::uint64_t total, double seconds) {
  const auto text = [](std::uint64_t bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); };
  const auto rate = static_cast<std::uint64_t>(static_cast<double>(done) / std::max(seconds, 1e-3));
  std::string amount = text(done);
  if (total > 0) {
    // One unit for both reads better: "312 of 838 MB".
    const std::string whole = text(total);
    const std::string unit = whole.substr(whole.find(' '));
    if (amount.ends_with(unit)) amount.resize(amount.size() - unit.size());
    amount += " of " + whole;
  }
  return title + ": " + amount + ", " + text(rate) + "/s";
}

std::string step_time_text(double seconds) {
  if (seconds >= 0.9995) return three_digits(seconds) + " s";
  return three_digits(seconds * 1e3) + " ms";
}

std::string remaining_text(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years; fits any integer
  if (!(seconds >= 0) || seconds > kLongest) return "unknown";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  constexpr std::int64_t kDay = 86400;
  if (total >= kDay) return std::to_string(total / kDay) + "d " + two_digits(total % kDay / 3600) + "h";
  const std::string rest = two_digits(total % 60);
  if (total < 3600) return std::to_string(total / 60) + ":" + rest;
  return std::to_string(total / 3600) + ":" + two_digits(total % 3600 / 60) + ":" + rest;
}

std::string loss_text(double loss) {
  const double size = std::abs(loss);
  return formatted(size == 0 || (size >= 1e-3 && size < 1e5) ? "%.4f" : "%.3g", loss);
}

void Pace::add(const StepSummary& summary) {
  constexpr double kMemorySeconds = 10;
  const double fading = std::exp(-summary.seconds / kMemorySeconds);
  num_steps_ = num_steps_ * fading + static_cast<double>(summary.num_steps);
  tokens_ = tokens_ * fading + static_cast<double>(summary.tokens);
  seconds_ = seconds_ * fading + summary.seconds;
}

std::string progress_text(const StepSummary& summary, const Pace& pace, const RunDescription& run, std::size_t width) {
  std::vector<Piece> pieces = {{step_text(summary, run), std::numeric_limits<int>::max()}};
  if (summary.last.loss) pieces.push_back({"loss " + loss_text(*summary.last.loss), 8});
  if (pace.tokens_per_second() > 0) pieces.push_back({count_text(pace.tokens_per_second()) + " tokens/s", 6});
  pieces.push_back({step_time_text(pace.step_seconds()) + "/step", 5});
  if (run.total_steps > 0) {
    const auto num_left = static_cast<double>(std::max<std::int64_t>(0, run.total_steps - summary.last.step));
    pieces.push_back({"ETA " + remaining_text(num_left * pace.step_seconds()), 7});
  }
  if (summary.device_memory) {  // where memory runs out: more important than the process's own
    pieces.push_back({"device " + bytes_text(summary.device_memory->allocated_bytes), 4});
    pieces.push_back({"device peak " + bytes_text(summary.device_memory->peak_bytes), 3});
  }
  pieces.push_back({"mem " + bytes_text(summary.memory.resident_bytes), 2});
  pieces.push_back({"peak " + bytes_text(summary.memory.peak_bytes), 1});
  const auto less_important = [](const Piece& a, const Piece& b) { return a.importance < b.importance; };
  while (pieces.size() > 1 && joined(pieces).size() > width) {
    pieces.erase(std::min_element(pieces.begin(), pieces.end(), less_important));
  }
  return joined(pieces).substr(0, width);
}

namespace {

/// Below this a line would only flicker.
constexpr auto kFirst = std::chrono::milliseconds(500);
constexpr auto kRedraw = std::chrono::milliseconds(100);

}  // namespace

class TransferLine::Drawing {
 public:
  Drawing(std::shared_ptr<Terminal> terminal, std::string title, std::shared_ptr<const ByteCount> count)
      : terminal_(std::move(terminal)),
        title_(std::move(title)),
        count_(std::move(count)),
        thread_(start_quiet_thread("tessera_moving", [this] { work(); })) {}

  ~Drawing() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    terminal_->note("");
  }
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;

 private:
  void work() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    for (auto pause = kFirst; !changed_.wait_for(lock, pause, [this] { return ending_; }); pause = kRedraw) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      terminal_->note(transfer_text(title_, count_->done, count_->total, elapsed.count()));
    }
  }

  std::shared_ptr<Terminal> terminal_;
  std::string title_;
  std::shared_ptr<const ByteCount> count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the rest
};

std::shared_ptr<Terminal> process_terminal(bool wanted) { return Terminal::of_process(wanted); }

LogSink log_sink_above(std::shared_ptr<Terminal> terminal) {
  return [terminal = std::move(terminal)](std::string_view line) { terminal->print(STDERR_FILENO, line); };
}

TransferLine::TransferLine(const std::shared_ptr<Terminal>& terminal, const std::string& title,
                           std::shared_ptr<const ByteCount> count) {
  if (terminal->kind() != Terminal::Kind::kNone) {
    drawing_ = std::make_unique<Drawing>(terminal, title, std::move(count));
  }
}

TransferLine::~TransferLine() = default;

}  // namespace tessera::observe
