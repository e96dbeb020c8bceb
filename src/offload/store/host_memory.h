#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "offload/store/budget.h"

namespace tessera::offload {

/// Whole pages of host memory, within a budget. What is given back stays for the next of its size, since fresh pages
/// take time to fault in; it goes on counting until somebody needs the room.
/// Thread-safety: all members may be called from any thread; `drop_one` is called from threads that call take().
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  /// Blocks are multiples of `alignment`, and begin at one.
  static std::shared_ptr<HostMemory> make(std::shared_ptr<Budget> budget, std::size_t alignment);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Uninitialised. It counts until the last copy of the pointer is gone. Null where there is no room.
  std::shared_ptr<std::byte> try_take(std::size_t num_bytes, Kind kind);
  /// As try_take(), but first drops what is only there because there was room. Throws StorageError, with what there is
  /// of each kind, if that is not enough.
  std::shared_ptr<std::byte> take(std::size_t num_bytes, Kind kind, const std::string& what);

  /// Frees memory that is kept only because there is room, and returns whether there was any.
  void set_drop_one(std::function<bool()> drop_one) { drop_one_ = std::move(drop_one); }
  const Budget& budget() const { return *budget_; }

 private:
  /// Pages of their own; unmapped with it.
  struct Block {
    std::byte* bytes = nullptr;
    std::size_t num_bytes = 0;
    Budget::Share share;
  };

  HostMemory(std::shared_ptr<Budget> budget, std::size_t alignment);
  std::unique_ptr<Block> take_spare(std::size_t num_bytes, Kind kind);
  void give_back(Block* block) noexcept;
  void drop_spare();
  static std::unique_ptr<Block> map(std::size_t num_bytes, Budget::Share share);
  static void unmap(Block& block) noexcept;

  const std::shared_ptr<Budget> budget_;
  const std::size_t alignment_;
  std::function<bool()> drop_one_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::unique_ptr<Block>> spare_;  // by size
};

}  // namespace tessera::offload
