#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "comm/host/host_segment.h"

namespace tessera::comm {

/// LibTorch's view of a rank's arena. Tensors keep the segment alive.
class ArenaAllocator : public c10::Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<HostSegment> segment) : segment_(std::move(segment)) {}

  c10::DataPtr allocate(std::size_t num_bytes) override;
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

 private:
  std::shared_ptr<HostSegment> segment_;
};

}  // namespace tessera::comm
