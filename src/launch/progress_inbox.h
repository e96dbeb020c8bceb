#pragma once

#include <tessera/core/descriptor.h>

#include <optional>
#include <string>

namespace tessera::launch {

/// Where rank 0 leaves the line that shows how far it is, for the launcher to show below all that the ranks print. It
/// is a pipe of its own: what is shown for a moment belongs neither into log files nor into the last words of a rank.
class ProgressInbox {
 public:
  /// Throws CommError when the system gives no pipe.
  ProgressInbox();

  /// Where a process of the same user opens it for writing, while this one lives.
  std::string path() const;
  /// Readable when there is something.
  int descriptor() const { return read_end_.get(); }
  /// The latest whole line, in printable characters; an empty one says that there is nothing to show any more. Nothing
  /// when no line has come. Does not block.
  std::optional<std::string> take();

 private:
  Descriptor read_end_;
  Descriptor write_end_;  ///< kept open: a pipe without writers is always readable
  std::string partial_;
};

}  // namespace tessera::launch
