#pragma once

#include <tessera/core/byte_count.h>
#include <tessera/core/log.h>

#include <memory>
#include <string>

namespace tessera::observe {

class Terminal;

/// The terminal of this process, or that of the `tessera run` that started it. Shows nothing when there is none, or
/// when none is wanted: on ranks other than 0, say.
std::shared_ptr<Terminal> process_terminal(bool wanted);

/// For a Logger: lines go to standard error, above what the terminal shows.
LogSink log_sink_above(std::shared_ptr<Terminal> terminal);

/// Shows how far a transfer is, for as long as it lives: "saving step 20: 312 of 838 MB, 1.10 GB/s". On a terminal that
/// an Observer uses too it stands behind the Observer's line. Its destructor removes it from the screen. A transfer of
/// less than half a second is not shown. Without a terminal there is no thread.
class TransferLine {
 public:
  TransferLine(const std::shared_ptr<Terminal>& terminal, const std::string& title,
               std::shared_ptr<const ByteCount> count);
  ~TransferLine();
  TransferLine(const TransferLine&) = delete;
  TransferLine& operator=(const TransferLine&) = delete;

  /// Whether there is a terminal. If not, nothing reads the count.
  bool is_shown() const { return drawing_ != nullptr; }

 private:
  class Drawing;
  std::unique_ptr<Drawing> drawing_;
};

}  // namespace tessera::observe
