// Any text as an index of safetensors files: what is accepted names files of its own folder only, and comes back from
// its own text.
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/expect.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto index = SafetensorsIndex::parse({reinterpret_cast<const char*>(data), size}, "input");
    for (const std::string& file : index.files()) {
      fuzz::expect(!file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos,
                   "files stay in the folder");
    }
    const auto again = SafetensorsIndex::parse(index.to_json(), "written");
    fuzz::expect(again.file_of == index.file_of && again.num_bytes == index.num_bytes, "an index survives");
  } catch (const StorageError& error) {
    fuzz::expect(std::string_view(error.what()).starts_with("input"), "a refusal names the text");
  }
  return 0;
}
