// Any text as a manifest, and any text with the root that it should have: what is accepted must come back from its own
// text, and its slices must hold every element once, which is counted where there are few.
#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/expect.h"

using namespace tessera;

namespace {

constexpr std::int64_t kMostCounted = 4096;

void count_slice(const Slice& slice, std::vector<int>& counts) {
  const std::vector<std::int64_t> sizes = slice.selected_shape();
  for (std::int64_t i = slice.range().start; i < slice.range().end(); ++i) {
    std::int64_t element = 0;
    std::int64_t stride = 1;
    std::int64_t rest = i;
    for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d], stride *= slice.shape()[d]) {
      std::int64_t index = rest % sizes[d];
      auto range = slice.indices()[d].begin();
      for (; index >= range->size; ++range) index -= range->size;
      element += (range->start + index) * stride;
    }
    fuzz::expect(element >= 0 && element < static_cast<std::int64_t>(counts.size()), "a slice lies in its tensor");
    ++counts[static_cast<std::size_t>(element)];
  }
}

void check(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    fuzz::expect(file.name.find('/') == std::string::npos && file.name != "..", "files stay in the folder");
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    fuzz::expect(manifest.find(tensor.group, tensor.name) == &tensor, "a tensor is found by its name");
    fuzz::expect(tensor.file < manifest.files.size(), "a tensor has a file");
    std::int64_t sum = 0;
    for (const ManifestSlice& slice : tensor.slices) sum += slice.slice.num_elements();
    const std::int64_t num_elements = num_elements_of(tensor.shape);
    fuzz::expect(sum == num_elements, "slices hold as many elements as the tensor");
    if (num_elements > kMostCounted) continue;
    std::vector<int> counts(static_cast<std::size_t>(num_elements), 0);
    for (const ManifestSlice& slice : tensor.slices) count_slice(slice.slice, counts);
    fuzz::expect(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }),
                 "slices hold every element once");
  }
  fuzz::expect(Manifest::parse(manifest.to_json(), "written") == manifest, "a manifest survives");
}

void try_text(std::string_view text) {
  try {
    check(Manifest::parse(text, "input"));
  } catch (const StorageError& error) {
    fuzz::expect(std::string_view(error.what()).starts_with("input"), "a refusal names the text");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_text(text);
  try_text(text + R"(,"root":")" + root_checksum_of(text) + "\"}\n");
  return 0;
}
