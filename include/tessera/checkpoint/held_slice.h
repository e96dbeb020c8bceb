#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/slice_place.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// What one rank holds of a tensor that may lie on many: the elements of `place` of a tensor of shape `shape`.
struct HeldSlice {
  std::string group;  ///< "model", "optimizer" or "training": each becomes files of its own
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  SlicePlace place;
  at::Tensor values;  ///< contiguous, as many elements as `place` has; shares memory with what is trained
};

/// All that one rank has to keep. Slices that several ranks hold are written once, by one of them.
struct RankState {
  std::vector<HeldSlice> slices;
  /// Numbers and texts beside the tensors. A name that several ranks give must have one value.
  std::map<std::string, ManifestValue> values;
};

}  // namespace tessera
