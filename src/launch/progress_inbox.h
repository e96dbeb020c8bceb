#pragma once

#include <tessera/core/descriptor.h>

#include <optional>
#include <string>

namespace tessera::launch {

/// Where rank 0 writes its progress line, which the launcher shows below all that the ranks print. It is a pipe of its
/// own: a line that is shown for a moment belongs neither into log files nor into the last lines of a rank.
class ProgressInbox {
 public:
  /// Throws CommError when the system gives no pipe.
  ProgressInbox();

  /// Where a process of the same user opens it for writing, while this one lives.
  std::string path() const;
  /// Readable when rank 0 has written something.
  int descriptor() const { return read_end_.get(); }
  /// The latest whole line, in printable characters; an empty line asks to show none any more. Nothing when no line has
  /// come. Does not block.
  std::optional<std::string> take();

 private:
  Descriptor read_end_;
  Descriptor write_end_;  ///< kept open: a pipe without writers is always readable
  std::string partial_;
};

}  // namespace tessera::launch
