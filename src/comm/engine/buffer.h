#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace tessera::comm {

/// Flat, contiguous, typed memory: all that an engine sees of a tensor.
struct Buffer {
  std::byte* data = nullptr;
  std::int64_t count = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;

  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
  std::int64_t num_bytes() const { return count * element_bytes(); }
  Buffer slice(std::int64_t begin, std::int64_t length) const {
    return {data == nullptr ? nullptr : data + begin * element_bytes(), length, dtype};
  }
  std::span<std::byte> bytes() const { return {data, static_cast<std::size_t>(num_bytes())}; }
};

/// Elements of each rank.
using Counts = std::vector<std::int64_t>;

/// Where each rank's elements begin; one more entry than `counts`, the last being the total.
inline std::vector<std::int64_t> offsets_of(const Counts& counts) {
  std::vector<std::int64_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

/// `count` elements in `parts` nearly equal pieces, the remainder to the first ones.
inline Counts even_counts(std::int64_t count, int parts) {
  Counts counts(static_cast<std::size_t>(parts), count / parts);
  for (std::int64_t i = 0; i < count % parts; ++i) ++counts[static_cast<std::size_t>(i)];
  return counts;
}

}  // namespace tessera::comm
