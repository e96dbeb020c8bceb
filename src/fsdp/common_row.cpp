#include "fsdp/common_row.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <utility>

namespace tessera::fsdp {
namespace {

/// Bytes of common memory that keep it.
c10::DataPtr bytes_at(const CommonMemory& memory, std::size_t offset) {
  auto held = std::make_unique<std::shared_ptr<void>>(memory.hold());
  return {memory.data() + offset, held.release(),
          [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, c10::Device(c10::kCPU)};
}

}  // namespace

CommonRow::CommonRow(CommonMemory memory, Milestones milestones, int unit, std::string name, Range mine,
                     at::ScalarType row_dtype, at::ScalarType shard_dtype)
    : memory_(std::move(memory)),
      milestones_(std::move(milestones)),
      unit_(unit),
      name_(std::move(name)),
      mine_(mine),
      row_dtype_(row_dtype),
      shard_dtype_(shard_dtype) {}

CommonRow::~CommonRow() {
  // Whoever writes must not wait for one that is gone.
  milestones_.reach(done(), number_);
}

at::Tensor CommonRow::part() const {
  const auto size = c10::elementSize(row_dtype_);
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::size_t>(mine_.size) * size,
      bytes_at(memory_, static_cast<std::size_t>(mine_.start) * size), nullptr, false));
  return at::empty({0}, at::TensorOptions(row_dtype_)).set_(storage, 0, {mine_.size}, {1});
}

at::Tensor CommonRow::make_shard() const {
  return casts() ? at::empty({mine_.size}, at::TensorOptions(shard_dtype_)) : part();
}

void CommonRow::await_readers() const {
  milestones_.await_all(done(), number_,
                        [this] { return "the parameters of " + name_ + " are still read, and cannot be written"; });
}

void CommonRow::start(HollowStorage& row, const at::Tensor& shard) {
  if (casts() && is_stale_) {
    await_readers();
    part().copy_(shard);
    is_stale_ = false;
  }
  may_write_ = false;
  milestones_.reach(ready(), ++number_);
  row.give(bytes_at(memory_, 0));
}

void CommonRow::finish() {
  milestones_.await_all(ready(), number_, [this] { return "the parameters of " + name_ + " are not all there"; });
}

void CommonRow::release(HollowStorage& row, bool /*keep_bytes*/, const std::string& why) {
  row.take(why);
  milestones_.reach(done(), number_);
}

void CommonRow::before_write() {
  is_stale_ = true;
  if (casts() || may_write_) return;
  await_readers();
  may_write_ = true;
}

}  // namespace tessera::fsdp
