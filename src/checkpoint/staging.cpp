#include "checkpoint/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kHugePage = 2U << 20;

}  // namespace

std::shared_ptr<std::byte> Staging::take(std::size_t num_bytes) {
  std::unique_lock lock(mutex_);
  const auto free_one = [&] {
    return std::find_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return !copy.taken; });
  };
  given_back_.wait(lock, [&] { return free_one() != copies_.end(); });
  Copy& copy = *free_one();
  if (copy.capacity < num_bytes) {
    copy.memory.reset();
    copy.capacity = 0;
    const std::size_t capacity = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, capacity));
    if (memory == nullptr) throw std::bad_alloc();
    // The first copy into it is part of training's pause, and takes a fault for each page.
    madvise(memory, capacity, MADV_HUGEPAGE);
    copy.memory.reset(memory);
    copy.capacity = capacity;
  }
  copy.taken = true;
  return {copy.memory.get(), [this, &copy](std::byte*) { give_back(copy); }};
}

void Staging::give_back(Copy& copy) {
  {
    const std::lock_guard lock(mutex_);
    copy.taken = false;
  }
  given_back_.notify_one();
}

}  // namespace tessera::checkpoints
