#pragma once

#include <tessera/checkpoint/manifest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::app {

/// A line of the tree.
struct TreeRow {
  std::size_t depth = 0;
  std::string label;
  std::string type;  // "F32 [4, 6]"; empty for a module
  std::uint64_t num_bytes = 0;
  std::size_t num_alike = 1;  // how many equal layers the row stands for; num_bytes is of one
  std::string layout;

  bool operator==(const TreeRow&) const = default;
};

struct TreeOptions {
  bool every_layer = false;  // otherwise layers that differ only in their number share one line
  bool slices = false;       // adds a line for each slice
};

/// The tensors of a group, by module path: each module, then its contents. Names are cut at dots and slashes.
std::vector<TreeRow> tensor_tree(const std::vector<const ManifestTensor*>& tensors, const TreeOptions& options);

std::uint64_t bytes_of(const ManifestTensor& tensor);

}  // namespace tessera::app
