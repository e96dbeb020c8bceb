#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/shard/slice.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// A file with tensors of a group, or the index that maps tensors to files.
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

/// A slice that is to be written once, and the ranks that hold it.
struct SharedSlice {
  Slice slice;                    ///< canonical
  std::uint64_t file_offset = 0;  ///< of its first byte, when it is an extent
  std::int64_t element_bytes = 0;
  std::vector<int> ranks;         ///< ascending
  std::vector<std::size_t> held;  ///< for each of these ranks, which of its slices
};

/// A part of a SharedSlice that one rank writes.
struct WriterShare {
  std::size_t slice = 0;   ///< in the `slices` of share_out()
  std::size_t holder = 0;  ///< in SharedSlice::ranks
  Range part;              ///< of its elements
};

/// Divides the slices among the ranks that hold them, see SavePlan. `slices` are in the order of the files. Pure
/// arithmetic.
std::vector<WriterShare> share_out(const std::vector<SharedSlice>& slices);

/// The group of the model's own tensors, whose files other programs read too.
inline constexpr const char* kWeightsGroup = "model";
/// The metadata of every file: Hugging Face's libraries refuse a file that does not name its framework.
inline SafetensorsLayout::Metadata file_notes() { return {{"format", "pt"}}; }

/// A slice that a rank holds, without its elements.
struct SliceDescription {
  std::string group;
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  Slice slice;

  bool operator==(const SliceDescription&) const = default;
};

/// As a text that another rank reads.
std::string to_text(const std::vector<SliceDescription>& slices);
std::vector<SliceDescription> slices_from_text(std::string_view text);

/// What one rank writes: a part of a slice that it holds, which becomes a slice of the manifest.
struct PlannedWrite {
  std::size_t tensor = 0;  ///< in Manifest::tensors
  std::size_t slice = 0;   ///< in ManifestTensor::slices
  std::size_t held = 0;    ///< which of the rank's slices
  std::int64_t first = 0;  ///< the element of that slice with which it starts
};

/// A file of tensors, or the index of several.
struct PlannedFile {
  std::string name;
  std::uint64_t num_bytes = 0;
  std::string text;              ///< how the file starts: the header; of an index, all of it
  std::uint64_t data_start = 0;  ///< 0 for an index
};

/// Which rank writes which bytes of which file. Every rank makes the same plan from the same descriptions.
///
/// Ranks divide the slices that they all hold: the slices of one set of ranks are laid end to end, in the order of the
/// files, and cut into as many extents of nearly equal length as there are ranks. So every rank writes long extents,
/// and replicated state costs each rank its share.
struct SavePlan {
  Manifest manifest;                               ///< with empty checksums, and those of headers and indices filled in
  std::vector<PlannedFile> files;                  ///< one for each of `manifest.files`
  std::vector<std::uint64_t> tensor_start;         ///< where in its file a tensor's bytes start, for each tensor
  std::vector<std::vector<PlannedWrite>> of_rank;  ///< in the order of the files

  /// Where in its file the first byte of a planned slice goes.
  std::uint64_t offset_of(const PlannedWrite& planned) const;
  std::uint64_t bytes_of(const PlannedWrite& planned) const;

  /// Throws ConfigError, naming tensor and ranks, when types or shapes differ, elements are missing, or slices overlap
  /// without being the same.
  static SavePlan make(const std::vector<std::vector<SliceDescription>>& of_ranks, std::uint64_t max_file_bytes);
};

}  // namespace tessera::checkpoints
