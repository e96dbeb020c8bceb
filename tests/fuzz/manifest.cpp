// Any text as a manifest, and any text with the root that it should have: what is accepted must come back from its own
// text, and its slices must hold every element once, which is counted where there are few.
#include <tessera/checkpoint/checksum.h>
#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>

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

void count_slice(const SlicePlace& place, std::vector<int>& counts) {
  std::vector<std::int64_t> index(place.view.size(), 0);
  for (std::int64_t left = place.num_elements(); left > 0; --left) {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < index.size(); ++d) element = element * place.view[d] + place.starts[d] + index[d];
    fuzz::expect(element >= 0 && element < static_cast<std::int64_t>(counts.size()), "a slice lies in its tensor");
    ++counts[static_cast<std::size_t>(element)];
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < place.sizes[d]) break;
      index[d] = 0;
    }
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
    for (const ManifestSlice& slice : tensor.slices) sum += slice.place.num_elements();
    const std::int64_t num_elements = SlicePlace::whole(tensor.shape).num_elements();
    fuzz::expect(sum == num_elements, "slices hold as many elements as the tensor");
    if (num_elements > kMostCounted) continue;
    std::vector<int> counts(static_cast<std::size_t>(num_elements), 0);
    for (const ManifestSlice& slice : tensor.slices) count_slice(slice.place, counts);
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
