#pragma once

#include <tessera/checkpoint/manifest.h>

#include <string>
#include <string_view>

namespace tessera::checkpoints {

/// Reads the JSON of a manifest strictly: nothing unknown, missing or twice, numbers whole and in range. Does not look
/// at what the members say about each other, nor at the root. `origin` names the file. Throws StorageError.
Manifest read_manifest_text(std::string_view text, const std::string& origin);

/// Throws StorageError unless a manifest makes sense: names are plain and stand once, every slice lies in its tensor,
/// slices hold each element once, and there is a checksum for every block.
/// Requires: tensors are sorted by group and name.
void check_manifest(const Manifest& manifest, const std::string& origin);

}  // namespace tessera::checkpoints
