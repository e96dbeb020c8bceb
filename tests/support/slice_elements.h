#pragma once

#include <tessera/shard/slice.h>

#include <ATen/ATen.h>

namespace tessera::testing {

/// The elements of a slice in its order, as places in its tensor in row-major order; with none of the library's own
/// arithmetic but what a slice says of itself.
inline at::Tensor places_of(const Slice& slice) {
  at::Tensor places = at::arange(slice.num_tensor_elements(), at::kLong).view(slice.shape());
  for (std::size_t dim = 0; dim < slice.shape().size(); ++dim) {
    std::vector<at::Tensor> taken{at::empty({0}, at::kLong)};
    for (const Range& range : slice.indices()[dim]) taken.push_back(at::arange(range.start, range.end(), at::kLong));
    places = places.index_select(static_cast<std::int64_t>(dim), at::cat(taken));
  }
  return places.flatten().narrow(0, slice.range().start, slice.range().size);
}

/// A copy of the slice's elements.
inline at::Tensor elements_of(const at::Tensor& whole, const Slice& slice) {
  return whole.detach().flatten().index_select(0, places_of(slice));
}

}  // namespace tessera::testing
