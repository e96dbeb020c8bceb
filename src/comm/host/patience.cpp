#include "comm/host/patience.h"

#include <tessera/core/error.h>

#include <sched.h>

#include <utility>

namespace tessera::comm {
namespace {

// With a core for each rank: about 100 microseconds in all.
constexpr int kTurns = 60;
constexpr int kLooks = 30;
constexpr int kCrowdedTurns = 3;

int available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

Patience::Patience(int num_local_ranks, LossCheck loss)
    : turns_(num_local_ranks <= available_cores() ? kTurns : kCrowdedTurns),
      looks_(num_local_ranks <= available_cores() ? kLooks : 1),
      loss_(std::move(loss)) {}

void Patience::offer_core() { sched_yield(); }

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
