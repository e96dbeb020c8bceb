#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/shard/tensor_slice.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A part of a checkpoint that one rank has. Its values are contiguous when they are saved.
struct HeldSlice : TensorSlice {
  std::string group;  ///< "model", "optimizer" or "training": each becomes files of its own
};

/// A tensor that no other rank has a part of, or that all have whole.
inline HeldSlice whole_slice(std::string group, std::string name, const at::Tensor& tensor) {
  return {{std::move(name), Slice::whole(tensor.sizes().vec()), tensor}, std::move(group)};
}

/// All that one rank has to keep. Slices that several ranks hold are written once, by one of them.
struct RankState {
  std::vector<HeldSlice> slices;
  /// Numbers and texts beside the tensors. A name that several ranks give must have one value.
  std::map<std::string, ManifestValue> values;
};

}  // namespace tessera
