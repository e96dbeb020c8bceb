#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace tessera::comm {

/// A word in memory that several processes may share, to sleep on. The non-private futex operations are used on
/// purpose: the private ones do not reach other processes.
using FutexWord = std::atomic<std::uint32_t>;
static_assert(FutexWord::is_always_lock_free && sizeof(FutexWord) == 4);

/// Blocks: while `word` holds `seen`, at most `timeout`. May return early; the caller looks again.
inline void futex_wait(FutexWord& word, std::uint32_t seen, std::chrono::nanoseconds timeout) {
  timespec span{};
  span.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  span.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &span, nullptr, 0);
}

inline void futex_wake_all(FutexWord& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera::comm
