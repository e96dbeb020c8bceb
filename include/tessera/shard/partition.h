#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace tessera {

/// A stretch of elements: [start, start + size).
struct Range {
  std::int64_t start = 0;
  std::int64_t size = 0;

  std::int64_t end() const { return start + size; }
  /// What both hold; empty, at the start of the later one, when that is nothing.
  Range meet(const Range& other) const;
  auto operator<=>(const Range&) const = default;
};

/// How a row of elements is cut into parts, one a rank. Parts are whole granules and differ by one granule at most: the
/// remainder goes to the first. The last granule may be cut short, and parts may be empty.
/// Pure arithmetic: nothing is communicated.
class Partition {
 public:
  Partition(std::int64_t num_elements, int num_parts, std::int64_t granule = 1);

  std::int64_t num_elements() const { return num_elements_; }
  int num_parts() const { return num_parts_; }
  std::int64_t granule() const { return granule_; }

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
