#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace tessera::intercept {

/// Blocks of whole pages. Takes the smallest free range that fits; free neighbours are one range.
/// Thread-safety: none.
class PageHeap {
 public:
  /// `min_spare_bytes`: so many free bytes are kept in any case, and as many as are in use.
  explicit PageHeap(std::size_t min_spare_bytes) : min_spare_bytes_(min_spare_bytes) {}
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  /// Null when the system has no memory. Uninitialised.
  void* take(std::size_t num_bytes);
  /// False: the block is not of this heap.
  bool give_back(void* block);

  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t spare_bytes() const { return spare_bytes_; }

 private:
  using Ranges = std::map<char*, std::size_t>;

  bool grow(std::size_t size);
  void add_free(char* start, std::size_t size);
  void remove_free(Ranges::iterator range);
  void unmap(std::size_t max_spare_bytes);

  std::size_t min_spare_bytes_;
  Ranges free_;                                      // by address
  std::set<std::pair<std::size_t, char*>> by_size_;  // the same
  std::unordered_map<void*, std::size_t> used_;
  std::size_t used_bytes_ = 0;
  std::size_t spare_bytes_ = 0;
};

}  // namespace tessera::intercept
