// Any bytes as a safetensors file: what is accepted must cover the file exactly, and come back from a file that is
// written with the same tensors.
#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/core/error.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fuzz/expect.h"

using namespace tessera;

namespace {

void check_layout(const SafetensorsLayout& layout, std::size_t size) {
  std::uint64_t end = 0;
  for (const StoredTensor& tensor : layout.tensors()) {
    fuzz::expect(tensor.begin == end && tensor.end >= tensor.begin, "tensors follow one another");
    fuzz::expect(layout.find(tensor.name) == &tensor, "a tensor is found by its name");
    end = tensor.end;
  }
  fuzz::expect(layout.num_file_bytes() == size && layout.data_start() + end == size, "the file is covered");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto layout = SafetensorsLayout::parse(std::as_bytes(std::span(data, size)), "input");
    check_layout(layout, size);
    const auto planned = SafetensorsLayout::plan(layout.tensors(), layout.metadata());
    std::string file = planned.header();
    file.resize(planned.num_file_bytes());
    const auto again = SafetensorsLayout::parse(std::as_bytes(std::span(file)), "planned");
    fuzz::expect(again.tensors() == planned.tensors() && again.metadata() == layout.metadata(), "a layout survives");
  } catch (const StorageError&) {
  }
  return 0;
}
