#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

/// A box of a tensor: in every dimension the elements from `starts` on, `sizes` of them.
struct TensorSlice {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> sizes;
};

}  // namespace tessera
