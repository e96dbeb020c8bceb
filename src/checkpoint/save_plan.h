#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/safetensors_layout.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// The group of the model's own tensors: the one whose files others read too.
inline constexpr const char* kWeightsGroup = "model";
/// What every file says of itself: Hugging Face's libraries refuse one that does not tell who wrote it.
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

/// Who writes which bytes of which file. Every rank makes the same plan from the same descriptions.
///
/// A slice that several ranks hold is shared out between them: what the same ranks hold is laid end to end in the order
/// of the files and cut into as many stretches as there are ranks, of nearly equal length. So every rank writes long
/// stretches, and replicated state costs each rank its share.
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
