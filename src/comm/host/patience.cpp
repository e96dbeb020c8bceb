#include "comm/host/patience.h"

#include <tessera/core/error.h>

#include <sched.h>

#include <utility>

namespace tessera::comm {
namespace {

constexpr int kSpins = 4000;  // about 50 to 100 microseconds

int available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

Patience::Patience(int num_local_ranks, LossCheck loss)
    : spins_(num_local_ranks <= available_cores() ? kSpins : 0), loss_(std::move(loss)) {}

void Patience::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Patience::check(Deadline deadline, const std::function<std::string()>& what) const {
  if (loss_) {
    if (const std::string lost = loss_(); !lost.empty()) throw CommError(what() + ": " + lost);
  }
  if (deadline.passed()) {
    throw CommError(what() + ": not done after " + std::to_string(deadline.timeout().count()) + " ms");
  }
}

}  // namespace tessera::comm
