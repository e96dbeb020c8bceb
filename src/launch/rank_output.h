#pragma once

#include <tessera/core/descriptor.h>
#include <array>
#include <filesystem>
#include <string_view>

#include "launch/console.h"
#include "launch/line_splitter.h"
#include "launch/output_tail.h"

namespace tessera::launch {

/// Where a rank's output goes besides its tail.
struct OutputPlan {
  bool shows_output = true;
  bool shows_errors = true;
  std::filesystem::path log_folder;  ///< empty: no files
};

/// The two pipes that a rank writes to, and the way of what comes out of them: unchanged to the log files, line by line
/// to the console and the tail.
class RankOutput {
 public:
  /// Throws StorageError when the log files cannot be made.
  RankOutput(int rank, const OutputPlan& plan, Console& console);

  /// The end that the rank writes to. Requires: close_write_ends() has not been called.
  int write_end(Stream stream) const { return pipe(stream).write_end.get(); }
  /// Once the rank has them.
  void close_write_ends();

  /// To be polled; -1 when nothing more will come.
  int descriptor(Stream stream) const { return pipe(stream).read_end.get(); }
  /// Takes what is there, up to a limit. Does not block.
  void read_some(Stream stream);
  /// Takes all that is there, gives the last lines though they have no end, and closes. Does not wait for writers: one
  /// may have left its pipe to a process that has nothing to do with the job.
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
