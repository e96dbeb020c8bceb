#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
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

/// How prefixes of names change: {"transformer.", ""} removes a prefix, {"", "transformer."} adds one to every name.
/// For each name only the first change whose prefix fits is applied.
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
/// several with an index. Every block is checked before it is written; the copy takes some 20 MiB of memory. The files
/// get their names when all of them are written. No communication.
/// Throws ConfigError when the step has no weights, a prefix fits no name, or the folder holds safetensors files
/// already; StorageError for damage and for a disk that fails. Blocks: for the disk.
InterchangeReport export_weights(const SavedStep& step, const std::filesystem::path& folder,
                                 const InterchangeOptions& options = {});

/// Makes a step of a checkpoint folder from such files: weights only, with a manifest and checksums. The step appears
/// whole or not at all, and loads on any number of ranks. `count`, if any, counts the bytes. No communication.
/// Throws ConfigError when that step is there already or a prefix fits no name; StorageError for a disk that fails.
/// Blocks: for the disk.
InterchangeReport import_weights(const SafetensorsFolderBytes& weights, const std::filesystem::path& checkpoints,
                                 std::int64_t step, const InterchangeOptions& options = {},
                                 std::shared_ptr<ByteCount> count = nullptr);

}  // namespace tessera
