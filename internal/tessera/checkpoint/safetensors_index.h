#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Which of several safetensors files holds which tensor, as Hugging Face's `model.safetensors.index.json` says it.
struct SafetensorsIndex {
  std::uint64_t num_bytes = 0;                 ///< of all tensors; 0 when the file does not say
  std::map<std::string, std::string> file_of;  ///< name of the tensor to name of the file, in the index's folder

  /// Every file that is named, once, sorted.
  std::vector<std::string> files() const;

  /// Strict: refuses duplicate keys, and file names that lead out of the folder.
  /// Throws StorageError; `origin` names the text.
  static SafetensorsIndex parse(std::string_view text, const std::string& origin);
  /// Throws ConfigError for a name that is not UTF-8.
  std::string to_json() const;
};

/// "model.safetensors" for one file, else "model-00002-of-00005.safetensors"; `place` counts from 0.
std::string shard_name(std::size_t place, std::size_t num_shards);

inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

}  // namespace tessera
