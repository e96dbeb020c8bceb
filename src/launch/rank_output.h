#pragma once

#include <tessera/core/descriptor.h>

#include <array>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tessera::launch {

enum class Stream { kOutput, kError };
inline constexpr std::array kStreams = {Stream::kOutput, Stream::kError};

/// What a rank wrote last, for the report of its failure.
class OutputTail {
 public:
  static constexpr std::size_t kMaxLines = 20;
  static constexpr std::size_t kMaxLineBytes = 1000;

  void add(Stream stream, std::string_view line);

  /// The last lines of both streams, in the order in which they came.
  const std::deque<std::string>& lines() const { return lines_; }
  /// The text of the last uncaught exception, or the last message of a Tessera program; empty when there was neither.
  const std::string& error_text() const { return error_text_; }

 private:
  std::deque<std::string> lines_;
  std::string error_text_;
};

/// Cuts a stream of bytes into lines. A carriage return ends a line too, so that progress bars show; empty lines that
/// result from this are left out. A line without an end is cut into pieces, so that it cannot fill the memory.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;
  /// Takes one line without its end.
  using Take = std::function<void(std::string_view line)>;

  explicit LineSplitter(Take take) : take_(std::move(take)) {}

  void add(std::string_view bytes);
  /// Passes on what came after the last end of a line, if anything.
  void finish();

 private:
  void append(std::string_view bytes);
  void end_line(char ending);

  Take take_;
  std::string partial_;
  bool after_return_ = false;
  bool after_cut_ = false;
};

/// The launcher's standard output and error. It never waits for their readers: lines are queued here, and are written
/// when the stream has room. A launcher that blocks in a write would notice neither a rank's death nor Ctrl-C.
class Console {
 public:
  Console();

  /// Queues `[rank 3] line`, coloured on a terminal unless NO_COLOR is set.
  void add_line(Stream stream, int rank, std::string_view line);
  /// Queues a line of the launcher's own on standard error.
  void add_note(std::string_view line);

  /// How wide the progress line may be; 0 when standard error is no terminal that could show one.
  std::size_t progress_width() const;
  /// Shows `line` below all others, in place of the previous one, as soon as nothing else is queued. Empty: none.
  void set_progress(const std::string& line);

  int descriptor(Stream stream) const { return state(stream).descriptor; }
  bool has_pending(Stream stream) const { return !state(stream).pending().empty(); }
  bool has_pending() const;
  /// Whether too much is queued: ranks should wait before they write more.
  bool is_full() const;
  /// Whether the stream has no reader any more.
  bool is_broken(Stream stream) const {
    return state(stream).broken || (one_terminal_ && state(Stream::kError).broken);
  }

  /// Writes what fits. Does not block. Requires: poll() has reported the stream as writable.
  void write_some(Stream stream);

 private:
  struct State {
    int descriptor = -1;
    bool coloured = false;
    bool whole = false;     ///< a regular file: takes any amount at once
    bool terminal = false;  ///< one that understands escapes
    bool broken = false;
    std::string queue;
    std::size_t num_written = 0;  ///< bytes at the queue's front that are out; erasing them each time would be slow

    std::string_view pending() const { return std::string_view(queue).substr(num_written); }
  };
  State& state(Stream stream) { return states_[static_cast<std::size_t>(stream)]; }
  const State& state(Stream stream) const { return states_[static_cast<std::size_t>(stream)]; }
  static State open(int descriptor);
  /// The queue for lines of `stream`. Two streams to one terminal share a queue, or the progress line could not be
  /// erased.
  State& queue_of(Stream stream) { return one_terminal_ ? state(Stream::kError) : state(stream); }
  void erase_progress(State& to);
  void draw_progress();

  std::array<State, kStreams.size()> states_;
  bool one_terminal_ = false;  ///< both streams are one and the same
  std::string progress_;       ///< the line to show
  std::string drawn_;          ///< the progress line that was queued last; empty when none is on the screen
};

/// Where a rank's output goes besides its tail.
struct OutputPlan {
  bool shows_output = true;
  bool shows_errors = true;
  std::filesystem::path log_folder;  ///< empty: no files
};

/// The two pipes that a rank writes to. What comes out of them goes unchanged to the log files, and line by line to the
/// console and the tail.
class RankOutput {
 public:
  /// Throws StorageError when the log files cannot be made.
  RankOutput(int rank, const OutputPlan& plan, Console& console);

  /// The end that the rank writes to. Requires: close_write_ends() has not been called.
  int write_end(Stream stream) const { return pipe(stream).write_end.get(); }
  /// To be called once the rank has them.
  void close_write_ends();

  /// To be polled; -1 when nothing more will come.
  int descriptor(Stream stream) const { return pipe(stream).read_end.get(); }
  /// Reads what is there, up to a limit. Does not block.
  void read_some(Stream stream);
  /// Reads all that is there, passes on last lines without an end too, and closes the pipes. Does not wait for writers:
  /// a rank may have left its pipe to a process that has nothing to do with the job.
  void finish();

  const OutputTail& tail() const { return tail_; }

 private:
  struct Pipe {
    Descriptor read_end;
    Descriptor write_end;
    Descriptor log;
    bool shown = true;
  };
  Pipe& pipe(Stream stream) { return pipes_[static_cast<std::size_t>(stream)]; }
  const Pipe& pipe(Stream stream) const { return pipes_[static_cast<std::size_t>(stream)]; }
  LineSplitter& lines(Stream stream) { return lines_[static_cast<std::size_t>(stream)]; }

  void take(Stream stream, std::string_view line);
  void keep(Stream stream, std::string_view bytes);
  void close(Stream stream);

  int rank_;
  Console& console_;
  OutputTail tail_;
  std::array<Pipe, kStreams.size()> pipes_;
  std::array<LineSplitter, kStreams.size()> lines_;
};

}  // namespace tessera::launch
