#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace tessera {

/// An extent of elements: [start, start + size).
struct Range {
  std::int64_t start = 0;
  std::int64_t size = 0;

  std::int64_t end() const { return start + size; }
  /// The intersection. If it is empty, it starts where the later range starts.
  Range meet(const Range& other) const;
  auto operator<=>(const Range&) const = default;
};

/// How a flat buffer is cut into parts, one for each rank. Parts consist of whole granules and differ by one granule at
/// most; the first parts are the longer ones. The last granule may be cut short, and parts may be empty.
/// Pure arithmetic: nothing is communicated.
class Partition {
 public:
  Partition(std::int64_t num_elements, int num_parts, std::int64_t granule = 1);

  std::int64_t num_elements() const { return num_elements_; }
  int num_parts() const { return num_parts_; }

  Range of(int part) const;
  /// The sizes of all parts, in order.
  std::vector<std::int64_t> sizes() const;
  /// Of the longest part, which is the first.
  std::int64_t longest() const { return of(0).size; }

 private:
  std::int64_t num_elements_;
  int num_parts_;
  std::int64_t granule_;
};

}  // namespace tessera
