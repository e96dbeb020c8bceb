#pragma once

#include <tessera/checkpoint/manifest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::app {

/// "[2, 3]"
std::string list_text(const std::vector<std::int64_t>& numbers);

/// Which ranks hold a tensor, and how it is cut: "ranks 0-3, an extent each", "ranks 0-1, split in dim 1".
std::string layout_text(const ManifestTensor& tensor);

/// One slice: "rank 1: [3333] at [3333] of [9600]".
std::string slice_text(const ManifestSlice& slice);

}  // namespace tessera::app
