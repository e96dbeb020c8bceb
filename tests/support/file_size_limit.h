#pragma once

#include <csignal>
#include <cstdint>
#include <sys/resource.h>

namespace tessera::testing {

/// Files that grow no further, as on a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t num_bytes) {
    before_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = num_bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*before_handler_)(int) = nullptr;
};

}  // namespace tessera::testing
