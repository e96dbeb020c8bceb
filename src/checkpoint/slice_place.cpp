#include <tessera/checkpoint/slice_place.h>

namespace tessera {

SlicePlace SlicePlace::whole(const std::vector<std::int64_t>& shape) {
  return {shape, std::vector<std::int64_t>(shape.size(), 0), shape};
}

SlicePlace SlicePlace::stretch(std::int64_t num_elements, std::int64_t start, std::int64_t size) {
  return {{num_elements}, {start}, {size}};
}

std::int64_t SlicePlace::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

}  // namespace tessera
