#pragma once

#include <csignal>

namespace tessera::comm {

/// While it lives, a write of this thread into a connection that the peer has closed is an error like any other, not
/// the end of the program. For threads that are started meanwhile it stays so.
///
/// Note [Connections that break]
/// Gloo writes with writev(), which raises SIGPIPE when the peer is gone and Gloo has not noticed yet. By default that
/// ends the program without a word: ranks would follow the one that died instead of saying which one that was. The
/// signal is kept from the threads of Gloo and from calls into it, not from the program, whose own pipes are its own
/// affair (docs/guides/launcher.md).
class NoBrokenPipe {
 public:
  NoBrokenPipe();
  ~NoBrokenPipe();
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t former_{};
};

}  // namespace tessera::comm
