#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/shard/slice.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::testing {

/// Who wrote which part of a tensor.
struct WrittenSlice {
  int rank = 0;
  Slice slice;  ///< a box, whose shape the manifest tells as the view
};

struct WrittenTensor {
  std::string group;
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<std::int64_t> shape;
  std::string file;
  std::vector<WrittenSlice> slices;

  /// Its elements, row by row: a formula of the name and the step.
  std::string bytes(std::int64_t step) const;
};

/// The bytes of a box in its own order, picked element by element from those of the whole tensor.
std::string picked(const std::string& bytes, std::size_t element_bytes, const Slice& box);

/// A step as docs/formats/checkpoint.md describes it, written with none of the code that reads it but the arithmetic of
/// safetensors headers and checksums.
struct StepWriter {
  std::int64_t step = 0;
  int num_ranks = 1;
  std::uint64_t block_bytes = 4096;
  std::vector<WrittenTensor> tensors;
  std::vector<std::pair<std::string, std::string>> other_files;  // name and text
  std::string values = "{}";                                     // as JSON

  /// Makes ROOT/step-N with its files, and returns it.
  std::filesystem::path write(const std::filesystem::path& root) const;
};

/// `body` is the text of a manifest up to the root: "{..." without "}".
std::string with_root(const std::string& body);

/// A step with what there is: extents, boxes, views of other shapes, empty slices, several types, files and groups.
StepWriter sample_step(std::int64_t step);

}  // namespace tessera::testing
