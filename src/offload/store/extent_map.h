#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera::offload {

/// Bytes that lie side by side.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;

  std::uint64_t end() const { return offset + num_bytes; }
  bool operator==(const Extent&) const = default;
};

/// Which bytes of a file, or of memory, are free. An extent is taken from the smallest gap that holds it, and what is
/// given back is joined with its neighbours: extents are of all sizes, and those of one model come back every step.
/// Thread-safety: none.
class ExtentMap {
 public:
  /// Extents begin at multiples of `alignment`.
  explicit ExtentMap(std::uint64_t alignment) : alignment_(alignment) {}

  /// `num_bytes` more at the end are free. Requires: a multiple of the alignment.
  void grow(std::uint64_t num_bytes);
  /// Its length is rounded up to the alignment. None where no gap is large enough.
  std::optional<Extent> take(std::uint64_t num_bytes);
  /// How much it must grow before take() succeeds.
  std::uint64_t lacking(std::uint64_t num_bytes) const;
  /// Requires: it was taken.
  void give_back(const Extent& extent);

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t rounded(std::uint64_t num_bytes) const {
    return (num_bytes + alignment_ - 1) / alignment_ * alignment_;
  }

 private:
  void add_gap(const Extent& gap);
  void remove_gap(std::map<std::uint64_t, std::uint64_t>::iterator gap);

  std::uint64_t alignment_;
  std::uint64_t capacity_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> gaps_;                  // offset: length
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_length_;  // length, offset
};

}  // namespace tessera::offload
