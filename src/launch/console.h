#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::launch {

enum class Stream { kOutput, kError };
inline constexpr std::array kStreams = {Stream::kOutput, Stream::kError};

/// The launcher's standard output and error. It never waits for who reads them: lines queue here, and are written as
/// room appears. A launcher that is stuck in a write would see neither a rank's death nor Ctrl-C.
class Console {
 public:
  Console();

  /// Queues `[rank 3] line`, coloured on a terminal unless NO_COLOR is set.
  void add_line(Stream stream, int rank, std::string_view line);
  /// Queues a line of the launcher's own on standard error.
  void add_note(std::string_view line);

  /// How wide a line may be that stays below all others; 0 when standard error is no terminal that could show one.
  std::size_t progress_width() const;
  /// Shows that line in place of the one before, as soon as nothing else waits to be written. Empty: none.
  void set_progress(const std::string& line);

  int descriptor(Stream stream) const { return state(stream).descriptor; }
  bool has_pending(Stream stream) const { return !state(stream).pending().empty(); }
  bool has_pending() const;
  /// Too much is queued: ranks should wait before they write more.
  bool is_full() const;
  /// Nobody reads the stream any more.
  bool is_broken(Stream stream) const {
    return state(stream).broken || (one_terminal_ && state(Stream::kError).broken);
  }

  /// Writes what fits. Requires: poll() said that the stream takes something; then this does not block.
  void write_some(Stream stream);

 private:
  struct State {
    int descriptor = -1;
    bool coloured = false;
    bool whole = false;     ///< a regular file: takes any amount at once
    bool terminal = false;  ///< one that understands escapes
    bool broken = false;
    std::string queue;
    std::size_t num_written = 0;  ///< bytes at the queue's front that are out; taking them away each time would be slow

    std::string_view pending() const { return std::string_view(queue).substr(num_written); }
  };
  State& state(Stream stream) { return states_[static_cast<std::size_t>(stream)]; }
  const State& state(Stream stream) const { return states_[static_cast<std::size_t>(stream)]; }
  static State open(int descriptor);
  /// Where lines for `stream` queue. What goes to one terminal has one order, or the progress line could not be erased.
  State& queue_of(Stream stream) { return one_terminal_ ? state(Stream::kError) : state(stream); }
  void erase_progress(State& to);
  void draw_progress();

  std::array<State, kStreams.size()> states_;
  bool one_terminal_ = false;  ///< both streams are one and the same
  std::string progress_;       ///< what is to be shown
  std::string drawn_;          ///< what was queued last of it; empty when it is not on the screen
};

}  // namespace tessera::launch
