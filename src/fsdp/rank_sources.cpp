#include "fsdp/rank_sources.h"

#include <tessera/core/error.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/thread_memory.h>
#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace tessera::fsdp {
namespace {

/// Bytes of the group's memory, which they keep alive.
c10::DataPtr bytes_at(const GroupMemory& memory, std::size_t offset) {
  auto held = std::make_unique<std::shared_ptr<void>>(memory.hold());
  return {memory.data() + offset, held.release(),
          [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, c10::Device(c10::kCPU)};
}

}  // namespace

SharedCopy::SharedCopy(GroupMemory memory, Fences fences, FlatSpec spec, int rank, BufferPool buffers)
    : memory_(std::move(memory)),
      fences_(std::move(fences)),
      spec_(std::move(spec)),
      mine_(spec_.partition.of(rank)),
      buffers_(std::move(buffers)) {}

SharedCopy::~SharedCopy() {
  // Ranks that write must not wait for this object once it is gone.
  fences_.reach(done(), number_);
}

at::Tensor SharedCopy::part() const {
  const auto offset = static_cast<std::size_t>(mine_.start) * c10::elementSize(spec_.compute_dtype);
  return tensor_on(bytes_at(memory_, offset), mine_.size, spec_.compute_dtype);
}

at::Tensor SharedCopy::make_shard() {
  return casts() ? at::empty({mine_.size}, at::TensorOptions(spec_.shard_dtype)) : part();
}

void SharedCopy::await_readers() const {
  fences_.await_all(done(), number_,
                    [this] { return "the parameters of " + spec_.name + " are still read, and cannot be written"; });
}

void SharedCopy::start(const at::Tensor& shard) {
  if (casts() && is_stale_) {
    await_readers();
    part().copy_(shard);
    is_stale_ = false;
  }
  may_write_ = false;
  fences_.reach(ready(), ++number_);
}

void SharedCopy::finish(HollowStorage& flat) {
  fences_.await_all(ready(), number_, [this] { return "the parameters of " + spec_.name + " are not all there"; });
  flat.give(bytes_at(memory_, 0));
}

void SharedCopy::release(HollowStorage& flat, bool /*keep_bytes*/, const std::string& why) {
  flat.take(why);
  owns_ = false;
  fences_.reach(done(), number_);
}

void SharedCopy::own(HollowStorage& flat) {
  if (std::exchange(owns_, true)) return;
  const auto num_bytes = static_cast<std::size_t>(flat.num_bytes());
  c10::DataPtr copy = buffers_.lend(num_bytes);
  std::memcpy(copy.get(), memory_.data(), num_bytes);
  flat.take("");
  flat.give(std::move(copy));
  fences_.reach(done(), number_);
}

void SharedCopy::before_write() {
  is_stale_ = true;
  if (casts() || may_write_) return;
  await_readers();
  may_write_ = true;
}

RankSources::RankSources(const FlatSourcesSpec& spec, bool shares)
    : comm_(spec.ranks), buffers_(make_flat_buffers(spec.ranks, spec.buffer_bytes, spec.device)) {
  if (shares && spec.device.is_cpu() && comm_.size() > 1)
    fences_ = Fences::make(comm_, spec.num_flat_parameters * SharedCopy::kNumKinds);
}

std::unique_ptr<FlatSource> RankSources::make(const FlatSpec& spec) {
  if (!fences_) return std::make_unique<GatheredCopy>(comm_, spec, buffers_);
  const auto num_bytes = static_cast<std::size_t>(spec.partition.num_elements()) * c10::elementSize(spec.compute_dtype);
  GroupMemory memory = GroupMemory::make(comm_, num_bytes).value();
  return std::make_unique<SharedCopy>(std::move(memory), *fences_, spec, comm_.rank(), buffers_);
}

}  // namespace tessera::fsdp
