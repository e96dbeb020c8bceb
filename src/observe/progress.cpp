#include "observe/progress.h"

#include <unistd.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "observe/progress_text.h"

namespace tessera::observe {
namespace {

class ProgressLine : public Sink {
 public:
  ProgressLine(std::shared_ptr<Terminal> terminal, RunDescription run)
      : terminal_(std::move(terminal)), run_(std::move(run)) {}

  void take(const StepSummary& summary) override {
    pace_.add(summary);
    latest_ = summary;
  }
  void flush() override {
    if (latest_) terminal_->draw(progress_text(*latest_, pace_, run_, terminal_->width()));
  }
  void close() override {
    flush();
    terminal_->leave();
  }

 private:
  std::shared_ptr<Terminal> terminal_;
  RunDescription run_;
  Pace pace_;
  std::optional<StepSummary> latest_;
};

class PlainProgress : public Sink {
 public:
  PlainProgress(std::shared_ptr<Terminal> terminal, RunDescription run, std::chrono::milliseconds every)
      : terminal_(std::move(terminal)), run_(std::move(run)), every_(every) {}

  void take(const StepSummary& summary) override {
    pace_.add(summary);
    latest_ = summary;
    const std::int64_t since_ns = summary.time_ns - shown_ns_;
    if (shown_ns_ == 0 || std::chrono::nanoseconds(since_ns) >= every_) show();
  }
  void close() override { show(); }

 private:
  void show() {
    if (!latest_ || latest_->time_ns == shown_ns_) return;
    shown_ns_ = latest_->time_ns;
    constexpr std::size_t kAnyWidth = std::numeric_limits<std::size_t>::max();
    terminal_->print(STDERR_FILENO, progress_text(*latest_, pace_, run_, kAnyWidth));
  }

  std::shared_ptr<Terminal> terminal_;
  RunDescription run_;
  std::chrono::milliseconds every_;
  Pace pace_;
  std::optional<StepSummary> latest_;
  std::int64_t shown_ns_ = 0;
};

}  // namespace

std::unique_ptr<Sink> make_progress_line(std::shared_ptr<Terminal> terminal, const RunDescription& run) {
  return std::make_unique<ProgressLine>(std::move(terminal), run);
}

std::unique_ptr<Sink> make_plain_progress(std::shared_ptr<Terminal> terminal, const RunDescription& run,
                                          std::chrono::milliseconds every) {
  return std::make_unique<PlainProgress>(std::move(terminal), run, every);
}

}  // namespace tessera::observe
