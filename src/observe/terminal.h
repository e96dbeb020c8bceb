#pragma once

#include <tessera/core/descriptor.h>
#include <tessera/observe/step_record.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::observe {

/// The place of the progress line: standard error, when that is a terminal, or the terminal of `tessera run`.
///
/// Note [A line that others write around]
/// The cursor stays behind the line, so that other output of the program begins there: it may look odd, but nothing is
/// lost, and a program that is killed leaves a readable screen. Lines that are printed through `print()` look clean.
/// Under `tessera run` standard error is a pipe. If the launcher itself has a terminal, TESSERA_PROGRESS names a pipe
/// for the line and TESSERA_PROGRESS_WIDTH its largest width. The launcher shows the line below everything that the
/// ranks print, so nothing looks odd.
///
/// Thread-safety: all functions.
class Terminal {
 public:
  enum class Kind { kNone, kOwn, kLaunchers };

  /// The terminal of this process; `kNone` when it has none or no line is wanted.
  static std::shared_ptr<Terminal> of_process(bool wanted);

  /// Draws on `line`.
  Terminal(Kind kind, Descriptor line, std::size_t launchers_width = 0);
  ~Terminal() { leave(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Kind kind() const { return kind_; }
  /// How long a line may be now: windows change, and a note takes space.
  std::size_t width() const;

  /// Shows `line` in place of the one before, cut to `width()`.
  void draw(const std::string& line);
  /// Shows `text` behind the line, or alone when there is no line. An empty text removes the note.
  void note(const std::string& text);
  /// Writes a line of its own to `descriptor`, and shows the progress line again below it.
  void print(int descriptor, std::string_view line);
  /// Leaves the line on the screen, without the note; later output begins a new line.
  void leave();

 private:
  std::size_t full_width() const;
  std::size_t room_beside_note() const;
  void show();
  void erase() const;

  const Kind kind_;
  const Descriptor line_;
  const std::size_t launchers_width_;
  mutable std::mutex mutex_;
  std::string drawn_;  // as draw() was given it
  std::string note_;
  std::string shown_;  // both of them, as on the screen
};

/// "812", "14.2k", "3.1M"
std::string count_text(double count);
/// "812 MB", "1.4 GB"
std::string bytes_text(std::int64_t bytes);
/// "81.2 ms", "3.10 s"
std::string step_time_text(double seconds);
/// "0:42", "12:03", "3:12:03", "2d 03h"
std::string remaining_text(double seconds);
/// "2.3456", "1.2e-05", "nan"
std::string loss_text(double loss);

/// "saving step 20: 312 of 838 MB, 1.10 GB/s", of a transfer that began `seconds` ago. Without a total: "saving step
/// 20: 312 MB, 1.10 GB/s".
std::string transfer_text(const std::string& title, std::uint64_t done, std::uint64_t total, double seconds);

/// The recent speed: older steps count less and less.
class Pace {
 public:
  void add(const StepSummary& summary);
  double step_seconds() const { return num_steps_ > 0 ? seconds_ / num_steps_ : 0; }
  double tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

 private:
  double num_steps_ = 0;
  double tokens_ = 0;
  double seconds_ = 0;
};

/// The line, in at most `width` ASCII characters: the least important parts are left out first.
std::string progress_text(const StepSummary& summary, const Pace& pace, const RunDescription& run, std::size_t width);

}  // namespace tessera::observe
