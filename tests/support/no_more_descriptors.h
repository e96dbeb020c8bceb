#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace tessera::testing {

/// While it lives the process gets no new descriptor: no file can be opened, and io_uring gives no ring, as under a
/// filter of calls.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    if (getrlimit(RLIMIT_NOFILE, &former_) != 0) throw std::runtime_error("the limit of descriptors is unknown");
    const int next = dup(STDIN_FILENO);
    close(next);
    const rlimit none{static_cast<rlim_t>(next), former_.rlim_max};
    if (next < 0 || setrlimit(RLIMIT_NOFILE, &none) != 0) throw std::runtime_error("descriptors cannot be limited");
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &former_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit former_{};
};

}  // namespace tessera::testing
