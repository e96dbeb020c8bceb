#include <tessera/checkpoint/safetensors_folder.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include "checkpoint/group_files.h"
#include "checkpoint/whole_tensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void refuse_other_form(const fs::path& folder, bool several) {
  const fs::path other = folder / (several ? kSingleFileName : kIndexFileName);
  if (!fs::exists(other)) return;
  throw ConfigError(folder.string() + " holds " + other.filename().string() + " already, and this save would write " +
                    (several ? "several files with an index" : "one file") +
                    " beside it; readers could not tell which is meant. Remove it, or save into another folder");
}

}  // namespace

at::Tensor SafetensorsFolder::read(const std::string& name) const {
  return checkpoints::tensor_of(at(name), bytes(name));
}

at::Tensor SafetensorsFolder::read_slice(const std::string& name, const Slice& slice) const {
  return checkpoints::part_of(at(name), bytes(name), slice, file_with(name).path());
}

void save_safetensors_folder(const fs::path& folder, const TensorsByName& tensors,
                             const SafetensorsLayout::Metadata& metadata, std::uint64_t max_file_bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw StorageError("the folder " + folder.string() + " cannot be made: " + error.message());
  const auto files =
      checkpoints::files_of_group("model", checkpoints::stored_tensors(tensors), max_file_bytes, metadata);
  refuse_other_form(folder, files.size() > 1);
  for (const checkpoints::GroupFile& file : files) {
    if (file.layout) {
      checkpoints::write_whole_tensors(folder / file.name, *file.layout, tensors);
    } else {
      write_file_atomically(folder / file.name, file.text);
    }
  }
}

}  // namespace tessera
