#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/shard/tensor_slice.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A part of a checkpoint that one rank has. To be saved, its values must be contiguous.
struct HeldSlice : TensorSlice {
  std::string group;  ///< "model", "optimizer" or "training": each becomes files of its own
};

/// A tensor that no other rank has a part of, or that all have whole.
inline HeldSlice whole_slice(std::string group, std::string name, const at::Tensor& tensor) {
  return {{std::move(name), Slice::whole(tensor.sizes().vec()), tensor}, std::move(group)};
}

/// All that one rank holds for a checkpoint. Slices that several ranks hold are written once, divided among these
/// ranks.
struct RankState {
  std::vector<HeldSlice> slices;
  /// Numbers and texts beside the tensors. A name that several ranks give must have the same value on each.
  std::map<std::string, ManifestValue> values;
};

/// Fills the values of `slices`, in place, from a step that was saved on any number of ranks. Reads only the blocks
/// that hold them. No communication.
/// Throws ConfigError for a tensor that the step does not have, or has in another type or shape; StorageError for
/// damage. Then the values are undefined.
void read_slices(const SavedStep& step, const std::vector<HeldSlice>& slices);

}  // namespace tessera
