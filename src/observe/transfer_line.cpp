#include <tessera/observe/transfer_line.h>

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "observe/progress_text.h"
#include "observe/quiet_thread.h"
#include "observe/terminal.h"

namespace tessera::observe {
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
