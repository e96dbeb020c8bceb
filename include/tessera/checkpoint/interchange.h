#pragma once

#include <tessera/checkpoint/safetensors_bytes.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/byte_count.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// How the start of a name changes on the way: {"transformer.", ""} takes it away, {"", "transformer."} puts it before
/// every name. Of several that fit the first counts, once a name.
using PrefixChanges = std::vector<std::pair<std::string, std::string>>;

struct InterchangeOptions {
  PrefixChanges prefixes;
  std::uint64_t max_file_bytes = std::uint64_t{5} << 30;  ///< more becomes several files and an index
};

struct InterchangeReport {
  std::size_t num_tensors = 0;
  std::uint64_t num_bytes = 0;     ///< of the tensors
  std::vector<std::string> files;  ///< that were made, without their folder
};

/// Copies the weights of a step, its group "model", into a folder as Hugging Face's libraries have them: one file, or
/// several with an index. Every block is checked before it is written; memory is that of a few MiB. The files get their
/// names when all of them are written. No communication.
/// Throws ConfigError when the step has no weights, a prefix fits no name, or the folder holds safetensors files
/// already; StorageError for damage and for a disk that fails. Blocks: for the disk.
InterchangeReport export_weights(const SavedStep& step, const std::filesystem::path& folder,
                                 const InterchangeOptions& options = {});

/// Makes a step of a checkpoint folder from such files: weights alone, with a manifest and checksums, whole or not at
/// all, and for any number of ranks. `count`, if any, counts the bytes. No communication.
/// Throws ConfigError when that step is there already or a prefix fits no name; StorageError for a disk that fails.
/// Blocks: for the disk.
InterchangeReport import_weights(const SafetensorsFolderBytes& weights, const std::filesystem::path& checkpoints,
                                 std::int64_t step, const InterchangeOptions& options = {},
                                 std::shared_ptr<ByteCount> count = nullptr);

}  // namespace tessera
