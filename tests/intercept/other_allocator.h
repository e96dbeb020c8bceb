#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>

namespace tessera::intercept {

/// While one lives, LibTorch's allocator is this one, which is nobody's.
class OtherAllocator : public c10::Allocator {
 public:
  OtherAllocator() { c10::SetCPUAllocator(this); }
  ~OtherAllocator() override { c10::SetCPUAllocator(below_); }
  OtherAllocator(const OtherAllocator&) = delete;
  OtherAllocator& operator=(const OtherAllocator&) = delete;

  c10::DataPtr allocate(std::size_t num_bytes) override { return below_->allocate(num_bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return below_->raw_deleter(); }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    below_->copy_data(destination, source, num_bytes);
  }

 private:
  c10::Allocator* const below_ = c10::GetCPUAllocator();
};

}  // namespace tessera::intercept
