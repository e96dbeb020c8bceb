#pragma once

#include <tessera/checkpoint/safetensors_layout.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::checkpoints {

/// A file that tensors of a group lie in, or the index that says in which.
struct GroupFile {
  std::string name;
  std::uint64_t num_bytes = 0;
  std::string text;                         ///< the header; of an index, all of it
  std::optional<SafetensorsLayout> layout;  ///< none for an index
};

/// The files of a group, as Hugging Face names them: "model.safetensors", or "model-00001-of-00003.safetensors" and so
/// on with "model.safetensors.index.json" behind them when the tensors do not fit into `max_file_bytes`. Filled by name
/// in turn; a single tensor may be larger. For `alignment` see SafetensorsLayout::plan().
std::vector<GroupFile> files_of_group(const std::string& group, std::vector<StoredTensor> tensors,
                                      std::uint64_t max_file_bytes, const SafetensorsLayout::Metadata& metadata,
                                      std::uint64_t alignment = 8);

}  // namespace tessera::checkpoints
