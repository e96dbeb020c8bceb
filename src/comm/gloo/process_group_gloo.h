#pragma once

#include <csignal>
#include <string>

#include "comm/connector.h"

namespace tessera::comm {

/// Blocks SIGPIPE on this thread while it lives: a write into a connection that the peer has closed is then an error
/// like any other, not the end of the program. Threads that are started meanwhile inherit this for good.
///
/// Note [Connections that break]
/// Gloo writes with writev(), which raises SIGPIPE when the peer is gone and Gloo has not noticed yet. By default that
/// ends the program without a message: the other ranks would die too instead of reporting which rank died. The signal
/// is blocked in Gloo's threads and in calls into Gloo, not in the rest of the program, which decides about its own
/// pipes (docs/guides/launcher.md).
class NoBrokenPipe {
 public:
  NoBrokenPipe();
  ~NoBrokenPipe();
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t former_{};
};

/// Makes LibTorch's Gloo process group. Its implementation is the one file that sees Gloo's declarations.
c10::intrusive_ptr<c10d::Backend> make_process_group_gloo(const ConnectRequest& request, const std::string& host);

}  // namespace tessera::comm
