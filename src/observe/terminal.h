#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::observe {

/// The place of the progress line: standard error, when that is a terminal, or the terminal of `tessera run`.
///
/// Note [A line that others write around]
/// The cursor rests behind the line, so that whatever else the program prints begins there: it may look odd, but
/// nothing is lost, and a program that is killed leaves a readable screen. What is printed through `print()` comes out
/// clean.
/// Under `tessera run` standard error is a pipe. If the launcher itself has a terminal, TESSERA_PROGRESS names a pipe
/// for the line and TESSERA_PROGRESS_WIDTH the room for it, and the launcher shows it below everything that the ranks
/// print: then nothing looks odd.
///
/// Thread-safety: all functions.
class Terminal {
 public:
  enum class Kind { kNone, kOwn, kLaunchers };

  /// What there is for this process; `kNone` when no line is wanted.
  static std::shared_ptr<Terminal> of_process(bool wanted);

  /// Draws on `line`.
  Terminal(Kind kind, Descriptor line, std::size_t launchers_width = 0);
  ~Terminal() { leave(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Kind kind() const { return kind_; }
  /// What a line may be as long as, now: windows change, and a note takes room.
  std::size_t width() const;

  /// Shows `line` in place of the one before. What is longer than `width()` is cut.
  void draw(const std::string& line);
  /// Shows something else that goes on behind the line, or alone when there is none. An empty one goes without a trace.
  void note(const std::string& text);
  /// Writes a line of its own to `descriptor`, and shows the progress line again below it.
  void print(int descriptor, std::string_view line);
  /// Leaves the line where it is, without the note; what follows begins a new one.
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

}  // namespace tessera::observe
