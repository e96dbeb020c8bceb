#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/shard/slice.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

/// A file of a step.
struct ManifestFile {
  std::string name;
  std::uint64_t num_bytes = 0;
  std::uint64_t header_bytes = 0;  ///< of a safetensors file, with the 8 bytes in front; 0: it is another kind of file
  std::uint64_t checksum = 0;      ///< of the header, or of the whole file when it has none

  bool operator==(const ManifestFile&) const = default;
};

/// What one rank wrote of a tensor.
struct ManifestSlice {
  int rank = 0;
  Slice slice;                           ///< of the tensor; may have another shape with as many elements
  std::vector<std::uint64_t> checksums;  ///< of the blocks of its bytes, in the slice's own row-major order

  bool operator==(const ManifestSlice&) const = default;
};

/// A tensor of a step. Its slices hold each of its elements once.
struct ManifestTensor {
  std::string name;
  std::string group;  ///< "model", "optimizer", "training"
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<std::int64_t> shape;
  std::size_t file = 0;  ///< its place in Manifest::files
  std::vector<ManifestSlice> slices;

  bool operator==(const ManifestTensor&) const = default;
};

/// Doubles are finite: JSON has no others.
using ManifestValue = std::variant<bool, std::int64_t, double, std::string>;

/// What a step holds. Plain data; docs/formats/checkpoint.md says what it means and what is refused.
struct Manifest {
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

  std::int64_t step = 0;  ///< updates done
  int num_ranks = 1;      ///< that saved it
  std::uint64_t block_bytes = kBlockBytes;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
  std::map<std::string, ManifestValue> values;

  /// Null when there is none. Requires: tensors are sorted by group and name, as parse() leaves them.
  const ManifestTensor* find(std::string_view group, std::string_view name) const;

  /// Throws StorageError for whatever the format does not allow; `origin` names the text.
  static Manifest parse(std::string_view text, const std::string& origin);
  /// The text of the file, with its root. Throws ConfigError for names and texts that are not UTF-8, and for values
  /// that are not finite. Checks nothing else: parse() does.
  std::string to_json() const;

  bool operator==(const Manifest&) const = default;
};

inline constexpr std::string_view kManifestName = "manifest.json";

/// The checksums of a slice's bytes, block by block, from its bytes in memory in its own order.
std::vector<std::uint64_t> block_checksums(std::span<const std::byte> bytes,
                                           std::uint64_t block_bytes = Manifest::kBlockBytes);

/// How many blocks a slice of so many bytes has.
std::uint64_t num_blocks(std::uint64_t num_bytes, std::uint64_t block_bytes);

}  // namespace tessera
