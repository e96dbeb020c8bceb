#include "fsdp/common_row.h"

#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>

#include <cstring>
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

CommonRow::CommonRow(CommonMemory memory, Milestones milestones, RowSpec spec, int rank, BufferPool buffers)
    : memory_(std::move(memory)),
      milestones_(std::move(milestones)),
      spec_(std::move(spec)),
      mine_(spec_.partition.of(rank)),
      buffers_(std::move(buffers)) {}

CommonRow::~CommonRow() {
  // Whoever writes must not wait for one that is gone.
  milestones_.reach(done(), number_);
}

at::Tensor CommonRow::part() const {
  const auto offset = static_cast<std::size_t>(mine_.start) * c10::elementSize(spec_.row_dtype);
  return tensor_on(bytes_at(memory_, offset), mine_.size, spec_.row_dtype);
}

at::Tensor CommonRow::make_shard() const {
  return casts() ? at::empty({mine_.size}, at::TensorOptions(spec_.shard_dtype)) : part();
}

void CommonRow::await_readers() const {
  milestones_.await_all(
      done(), number_, [this] { return "the parameters of " + spec_.name + " are still read, and cannot be written"; });
}

void CommonRow::start(const at::Tensor& shard) {
  if (casts() && is_stale_) {
    await_readers();
    part().copy_(shard);
    is_stale_ = false;
  }
  may_write_ = false;
  milestones_.reach(ready(), ++number_);
}

void CommonRow::finish(HollowStorage& row) {
  milestones_.await_all(ready(), number_, [this] { return "the parameters of " + spec_.name + " are not all there"; });
  row.give(bytes_at(memory_, 0));
}

void CommonRow::release(HollowStorage& row, bool /*keep_bytes*/, const std::string& why) {
  row.take(why);
  owns_ = false;
  milestones_.reach(done(), number_);
}

void CommonRow::own(HollowStorage& row) {
  if (std::exchange(owns_, true)) return;
  const auto num_bytes = static_cast<std::size_t>(row.num_bytes());
  c10::DataPtr copy = buffers_.lend(num_bytes);
  std::memcpy(copy.get(), memory_.data(), num_bytes);
  row.take("");
  row.give(std::move(copy));
  milestones_.reach(done(), number_);
}

void CommonRow::before_write() {
  is_stale_ = true;
  if (casts() || may_write_) return;
  await_readers();
  may_write_ = true;
}

}  // namespace tessera::fsdp
