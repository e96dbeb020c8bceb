// Any bytes as the memory of a black box: its writer may have died anywhere.
#include <tessera/flight/hang_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "flight/box.h"
#include "fuzz/expect.h"

using namespace tessera::flight;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto box = std::make_unique<Box>();
  // The groups take most of a box, and one entry is like another: the input goes to its head and to the calls.
  auto* bytes = reinterpret_cast<std::uint8_t*>(box.get());
  const std::size_t head = std::min(size, offsetof(Box, groups) + sizeof(GroupEntry));
  std::memcpy(bytes, data, head);
  std::memcpy(bytes + offsetof(Box, calls), data + head, std::min(size - head, sizeof(box->calls)));
  const Snapshot snapshot = read_box(*box);
  tessera::fuzz::expect(snapshot.calls.size() <= Recorder::kCapacity, "a ring has an end");
  tessera::fuzz::expect(!to_json(snapshot).empty(), "what was read has a text");
  RankStatus status;
  status.snapshot = snapshot;
  analyse("fuzz", true, 0, 1, {status});
  return 0;
}
