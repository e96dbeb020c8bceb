#pragma once

#include <tessera/checkpoint/safetensors_layout.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// What the JSON of a header says, in its order.
struct HeaderText {
  std::vector<StoredTensor> tensors;
  SafetensorsLayout::Metadata metadata;
};

/// Reads the JSON of a header strictly: nothing unknown, nothing twice, whole numbers only. Does not look at where the
/// tensors lie. `origin` names the file. Throws StorageError.
HeaderText parse_header_text(std::string_view text, const std::string& origin);

/// The JSON for tensors in this order. Throws ConfigError for a name or note that is not UTF-8.
std::string make_header_text(const std::vector<StoredTensor>& tensors, const SafetensorsLayout::Metadata& metadata);

/// The bytes of a tensor; none when a product of its sizes, taking 0 as 1, does not fit into 63 bits: LibTorch counts
/// strides that way.
std::optional<std::uint64_t> bytes_of(StoredDtype dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// A text from a file, in quotes, fit for a message: not too long, and printable.
std::string shown(std::string_view text);

/// The key that stands for the notes, and so is no tensor's name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

}  // namespace tessera::checkpoints
