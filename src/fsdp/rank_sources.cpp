#include "fsdp/rank_sources.h"

#include <tessera/core/error.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/thread_memory.h>
#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>

#include <cstring>
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

at::Tensor SharedCopy::make_shard() const {
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

GatheredCopy::GatheredCopy(Communicator comm, FlatSpec spec, BufferPool buffers)
    : comm_(std::move(comm)), spec_(std::move(spec)), buffers_(std::move(buffers)), arriving_(make_arriving()) {}

HollowStorage GatheredCopy::make_arriving() const {
  return {spec_.partition.num_elements(), spec_.compute_dtype, spec_.device,
          "parameters are on their way to this memory"};
}

at::Tensor GatheredCopy::make_shard() const {
  return comm_.empty({spec_.partition.of(comm_.rank()).size},
                     at::TensorOptions(spec_.shard_dtype).device(spec_.device));
}

void GatheredCopy::start(const at::Tensor& shard) {
  // Exchanged, not moved from: a DataPtr that was moved from still has its address.
  c10::DataPtr kept = std::exchange(kept_, c10::DataPtr());
  arriving_.give(kept ? std::move(kept) : buffers_.lend(static_cast<std::size_t>(arriving_.num_bytes())));
  at::Tensor part = shard;
  if (spec_.compute_dtype != spec_.shard_dtype) {
    // Parts travel in the dtype of the computation.
    const Range mine = spec_.partition.of(comm_.rank());
    part = arriving_.flat().narrow(0, mine.start, mine.size);
    part.copy_(shard);
  }
  if (comm_.size() > 1) gather_ = comm_.all_gather_into_async(arriving_.flat(), part, spec_.partition.sizes());
}

void GatheredCopy::finish(HollowStorage& flat) {
  Work gather = std::exchange(gather_, Work());
  try {
    if (comm_.size() > 1) gather.wait();
  } catch (...) {
    // Parts may still arrive in tensors that the group holds, so this memory must not be reused.
    arriving_ = make_arriving();
    throw;
  }
  flat.give(arriving_.take(""));
}

void GatheredCopy::release(HollowStorage& flat, bool keep_bytes, const std::string& why) {
  c10::DataPtr bytes = flat.take(why);
  if (keep_bytes) kept_ = std::move(bytes);
}

std::shared_ptr<void> own_pages(std::size_t num_bytes) {
  try {
    return host_pages(num_bytes);
  } catch (const StorageError&) {
    const std::string why = intercept::why_no_memory(num_bytes);
    if (why.empty()) throw;
    throw StorageError(why);
  }
}

BufferPool make_flat_buffers(const Communicator& comm, std::size_t buffer_bytes, c10::Device device) {
  if (!device.is_cpu()) {
    // Of the device's allocator, which keeps what is freed for the same stream: however far the host runs ahead, a
    // stream needs no more than it would if the host waited for it.
    const auto take = [device](std::size_t num_bytes) -> std::shared_ptr<void> {
      const intercept::CountedElsewhere by_the_pool;
      auto tensor = std::make_shared<at::Tensor>(
          at::empty({static_cast<std::int64_t>(num_bytes)}, at::TensorOptions(at::kByte).device(device)));
      return {tensor, tensor->mutable_data_ptr()};
    };
    return BufferPool::that_keeps_nothing(take, device);
  }
  if (!comm.allocator()) {
    const auto take = [](std::size_t num_bytes) {
      std::shared_ptr<void> block = intercept::large_block(num_bytes);
      return block ? block : own_pages(num_bytes);
    };
    return BufferPool::that_keeps_nothing(take, device);
  }
  const auto allocate = [comm](std::size_t num_bytes) -> std::shared_ptr<void> {
    auto tensor = std::make_shared<at::Tensor>(comm.empty({static_cast<std::int64_t>(num_bytes)}, at::kByte));
    return {tensor, tensor->mutable_data_ptr()};
  };
  return {allocate, buffer_bytes, device};
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
