#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/shard/slice.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints::members {

/// Where in the text of a manifest the parser is.
enum class Place { kStart, kManifest, kFiles, kFile, kTensors, kTensor, kSlices, kSlice, kNumbers, kValues, kEnd };

/// The kind of a member's value.
enum class Kind { kText, kNumber, kNumbers, kObjects, kValues };

enum class Id {
  kFormat,
  kVersion,
  kStep,
  kNumRanks,
  kBlockBytes,
  kFiles,
  kTensors,
  kValues,
  kRoot,
  kFileName,
  kFileBytes,
  kHeaderBytes,
  kHeaderChecksum,
  kFileChecksum,
  kTensorName,
  kGroup,
  kDtype,
  kShape,
  kFile,
  kSlices,
  kRank,
  kView,
  kStarts,
  kSizes,
  kRanges,
  kPart,
  kChecksums
};

/// A member of one of the objects of a manifest.
struct Member {
  Id id;
  Place object;
  std::string_view name;
  Kind kind;
  std::uint64_t least = 0;  // of a number
  std::uint64_t most = std::numeric_limits<std::int64_t>::max();
};

inline constexpr std::uint64_t kMostInt = std::numeric_limits<int>::max();
inline constexpr std::uint64_t kLeastBlock = std::uint64_t{1} << 12;
inline constexpr std::uint64_t kMostBlock = std::uint64_t{1} << 26;
inline constexpr std::uint64_t kLeastHeader = 10;  // 8 bytes and {}

// In the order of Id.
inline constexpr std::array kMembers = {
    Member{Id::kFormat, Place::kManifest, "format", Kind::kText},
    Member{Id::kVersion, Place::kManifest, "version", Kind::kNumber},
    Member{Id::kStep, Place::kManifest, "step", Kind::kNumber},
    Member{Id::kNumRanks, Place::kManifest, "num_ranks", Kind::kNumber, 1, kMostInt},
    Member{Id::kBlockBytes, Place::kManifest, "block_bytes", Kind::kNumber, kLeastBlock, kMostBlock},
    Member{Id::kFiles, Place::kManifest, "files", Kind::kObjects},
    Member{Id::kTensors, Place::kManifest, "tensors", Kind::kObjects},
    Member{Id::kValues, Place::kManifest, "values", Kind::kValues},
    Member{Id::kRoot, Place::kManifest, "root", Kind::kText},
    Member{Id::kFileName, Place::kFile, "name", Kind::kText},
    Member{Id::kFileBytes, Place::kFile, "bytes", Kind::kNumber},
    Member{Id::kHeaderBytes, Place::kFile, "header_bytes", Kind::kNumber, kLeastHeader,
           SafetensorsLayout::kMaxHeaderBytes + 8},
    Member{Id::kHeaderChecksum, Place::kFile, "header_checksum", Kind::kText},
    Member{Id::kFileChecksum, Place::kFile, "checksum", Kind::kText},
    Member{Id::kTensorName, Place::kTensor, "name", Kind::kText},
    Member{Id::kGroup, Place::kTensor, "group", Kind::kText},
    Member{Id::kDtype, Place::kTensor, "dtype", Kind::kText},
    Member{Id::kShape, Place::kTensor, "shape", Kind::kNumbers},
    Member{Id::kFile, Place::kTensor, "file", Kind::kNumber},
    Member{Id::kSlices, Place::kTensor, "slices", Kind::kObjects},
    Member{Id::kRank, Place::kSlice, "rank", Kind::kNumber, 0, kMostInt},
    Member{Id::kView, Place::kSlice, "view", Kind::kNumbers},
    Member{Id::kStarts, Place::kSlice, "starts", Kind::kNumbers},
    Member{Id::kSizes, Place::kSlice, "sizes", Kind::kNumbers},
    Member{Id::kRanges, Place::kSlice, "ranges", Kind::kNumbers},
    Member{Id::kPart, Place::kSlice, "part", Kind::kNumbers},
    Member{Id::kChecksums, Place::kSlice, "checksums", Kind::kText},
};

constexpr std::uint32_t bit_of(Id id) { return std::uint32_t{1} << static_cast<unsigned>(id); }

inline std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "a text";
    case Kind::kNumber:
      return "a whole number of at least 0";
    case Kind::kNumbers:
      return "a list of whole numbers";
    case Kind::kObjects:
      return "a list of objects";
    case Kind::kValues:
      return "an object of values";
  }
  return "";
}

}  // namespace tessera::checkpoints::members

namespace tessera::checkpoints {

/// A slice as lists of numbers, which texts hold: docs/formats/checkpoint.md.
struct SliceMembers {
  static constexpr std::size_t kMostRanges = 4096;

  std::vector<std::int64_t> view;
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> ranges;  ///< how many ranges each dimension has; empty: one each
  std::vector<std::int64_t> part;    ///< the first element and the number of elements; empty: all

  /// Whether version 1 of the format can express it.
  bool is_box() const { return ranges.empty() && part.empty(); }
};

/// Throws ConfigError for more ranges than the format allows.
SliceMembers members_of(const Slice& slice);

/// The slice of a tensor with this shape. Throws ConfigError when `members` do not describe one.
Slice slice_of(const SliceMembers& members, const std::vector<std::int64_t>& shape);

/// Reads the JSON of a manifest strictly: nothing unknown, missing or twice, numbers whole and in range. Does not check
/// members against each other, nor the root. `origin` names the file. Throws StorageError.
Manifest read_manifest_text(std::string_view text, const std::string& origin);

/// Throws StorageError unless a manifest makes sense: names are plain and unique, every slice lies in its tensor,
/// slices hold each element once, and there is a checksum for every block.
/// Requires: tensors are sorted by group and name.
void check_manifest(const Manifest& manifest, const std::string& origin);

}  // namespace tessera::checkpoints
