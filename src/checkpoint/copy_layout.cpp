#include "checkpoint/copy_layout.h"

#include "checkpoint/write_stretch.h"

namespace tessera::checkpoints {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLineBytes = 64;

/// The first place from `begin` on that is `rest` above a multiple of `unit`.
std::size_t next_place(std::size_t begin, std::size_t rest, std::size_t unit) {
  return begin + (rest + unit - begin % unit) % unit;
}

}  // namespace

CopyLayout CopyLayout::of(const SavePlan& plan, int rank) {
  CopyLayout layout;
  for (const PlannedWrite& planned : plan.of_rank[static_cast<std::size_t>(rank)]) {
    const std::size_t num_bytes = plan.bytes_of(planned);
    const std::size_t place = num_bytes < kLeastDirect
                                  ? next_place(layout.num_bytes, 0, kLineBytes)
                                  : next_place(layout.num_bytes, plan.offset_of(planned) % kPageBytes, kPageBytes);
    layout.places.push_back(place);
    layout.num_bytes = place + num_bytes;
  }
  return layout;
}

}  // namespace tessera::checkpoints
