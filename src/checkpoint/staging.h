#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera::checkpoints {

/// Memory for copies of what is being saved: at most so many at once, used again for the next save.
/// Thread-safety: all members may be called from any thread.
class Staging {
 public:
  explicit Staging(std::size_t max_copies) : copies_(max_copies) {}

  /// Memory of one copy; goes back when the last owner goes.
  /// Blocks: until one is free.
  std::shared_ptr<std::byte> take(std::size_t num_bytes);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }  // NOLINT: from aligned_alloc
  };
  struct Copy {
    std::unique_ptr<std::byte, Free> memory;
    std::size_t capacity = 0;
    bool taken = false;
  };
  void give_back(Copy& copy);

  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Copy> copies_;
};

}  // namespace tessera::checkpoints
