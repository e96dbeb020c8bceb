#pragma once

#include <tessera/core/descriptor.h>

#include <csignal>
#include <filesystem>
#include <pthread.h>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::observe {

/// A thread with all signals blocked, so that the program's handlers run on the program's own threads. `name`, of at
/// most 15 characters, is what `top -H` shows.
template <typename Body>
std::thread start_quiet_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

/// A file that is only appended to. Its folder is created when it is missing.
class OutputFile {
 public:
  enum class Mode { kAppend, kReplace };

  /// Throws StorageError when it cannot be made.
  OutputFile(std::filesystem::path path, Mode mode);

  /// Writes all of it. Throws StorageError; then the file is cut back to its former length if possible, since a file of
  /// records should end with a whole one.
  void write(std::string_view bytes);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace tessera::observe
