#include "comm/host/control_block.h"

#include <tessera/core/error.h>

#include <sched.h>
#include <utility>

#include "comm/engine/collective_engine.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kPostBytes = 64;
constexpr std::size_t kNumTables = 6;  // offsets, offered, expected; two of each
static_assert(sizeof(Post) <= kPostBytes);
static_assert(sizeof(PairQueue) == 64);

std::size_t posts_begin(std::size_t size) { return 128 + 64 * size; }
std::size_t rows_begin(std::size_t size) { return posts_begin(size) + 2 * size * kPostBytes; }
// Rows of different ranks share no cache line.
std::size_t row_bytes(std::size_t size) { return (size * sizeof(std::int64_t) + 63) / 64 * 64; }
std::size_t pairs_begin(std::size_t size) { return rows_begin(size) + kNumTables * size * row_bytes(size); }
std::size_t staging_begin(std::size_t size) {
  const std::size_t end = pairs_begin(size) + kNumChannels * size * size * sizeof(PairQueue);
  return (end + 4095) / 4096 * 4096;
}

}  // namespace

std::size_t ControlBlock::num_bytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return staging_begin(ranks) + 2 * ranks * kStagingBytes;
}

Post& ControlBlock::post(unsigned parity, int rank) const {
  return *at<Post>(posts_begin(size_) + (parity * size_ + index(rank)) * kPostBytes);
}

std::int64_t* ControlBlock::row(unsigned table, unsigned parity, int rank) const {
  return at<std::int64_t>(rows_begin(size_) + ((table + parity) * size_ + index(rank)) * row_bytes(size_));
}

PairQueue& ControlBlock::pair(int channel, int from, int to) const {
  return *at<PairQueue>(pairs_begin(size_) +
                        ((index(channel) * size_ + index(from)) * size_ + index(to)) * sizeof(PairQueue));
}

std::byte* ControlBlock::staging(unsigned parity, int rank) const {
  return memory_ + staging_begin(size_) + (parity * size_ + index(rank)) * kStagingBytes;
}

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

Waiter::Waiter(int num_local_ranks, LossCheck loss)
    : turns_(num_local_ranks <= available_cores() ? kTurns : kCrowdedTurns),
      looks_(num_local_ranks <= available_cores() ? kLooks : 1),
      loss_(std::move(loss)) {}

void Waiter::offer_core() { sched_yield(); }

void Waiter::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Waiter::check(Deadline deadline, const std::function<std::string()>& what) const {
  if (const std::string lost = find_loss(); !lost.empty()) throw CommError(what() + ": " + lost);
  if (deadline.passed()) {
    throw CommError(what() + ": not done after " + std::to_string(deadline.timeout().count()) + " ms");
  }
}

}  // namespace tessera::comm
