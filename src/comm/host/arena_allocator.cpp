#include "comm/host/arena_allocator.h"

#include <cstring>

namespace tessera::comm {
namespace {

/// What the deleter needs, since it is handed one pointer only.
struct Owned {
  std::shared_ptr<HostSegment> segment;
  std::byte* memory;
};

void free_owned(void* context) {
  std::unique_ptr<Owned> owned(static_cast<Owned*>(context));
  owned->segment->arena().free(owned->memory);
}

}  // namespace

c10::DataPtr ArenaAllocator::allocate(std::size_t num_bytes) {
  auto owned = std::make_unique<Owned>(Owned{segment_, segment_->arena().allocate(num_bytes)});
  std::byte* memory = owned->memory;
  return {memory, owned.release(), &free_owned, c10::Device(c10::DeviceType::CPU)};
}

void ArenaAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  std::memcpy(destination, source, num_bytes);
}

}  // namespace tessera::comm
