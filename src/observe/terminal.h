#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::observe {

/// The place of the progress line: standard error, when that is a terminal, or the terminal of `tessera run`.
///
/// Note [A line that others write around]
/// The cursor rests behind the line, so that whatever else the program prints begins there: it may look odd, but nothing
/// is lost, and a program that is killed leaves a readable screen. What is printed through `print()` comes out clean.
/// Under `tessera run` standard error is a pipe. If the launcher itself has a terminal, it says how wide that is in
/// TESSERA_TERMINAL_WIDTH, and shows a line that ends with a carriage return in place, below everything that the ranks
/// print: then nothing looks odd.
///
/// Thread-safety: all functions.
class Terminal {
 public:
  enum class Kind { kNone, kOwn, kLaunchers };

  /// What there is for this process.
  static Kind kind_of_process();

  Terminal(Kind kind, int descriptor) : kind_(kind), descriptor_(descriptor) {}
  ~Terminal() { leave(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Kind kind() const { return kind_; }
  /// What a line may be as long as, now: windows change.
  std::size_t width() const;

  /// Shows `line` in place of the one before. Requires: at most `width()` characters.
  void draw(const std::string& line);
  /// Writes a line of its own to `descriptor`, and shows the progress line again below it.
  void print(int descriptor, std::string_view line);
  /// Leaves the line where it is; what follows begins a new one.
  void leave();

 private:
  void erase() const;

  const Kind kind_;
  const int descriptor_;
  std::mutex mutex_;
  std::string shown_;
};

}  // namespace tessera::observe
