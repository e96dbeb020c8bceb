#include <tessera/core/error.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/thread_memory.h>
#include <tessera/shard/gathered_copy.h>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

namespace tessera {

GatheredCopy::GatheredCopy(Communicator comm, FlatSpec spec, BufferPool buffers)
    : comm_(std::move(comm)), spec_(std::move(spec)), buffers_(std::move(buffers)), arriving_(make_arriving()) {}

HollowStorage GatheredCopy::make_arriving() const {
  return {spec_.partition.num_elements(), spec_.compute_dtype, spec_.device,
          "parameters are on their way to this memory"};
}

at::Tensor GatheredCopy::make_shard() {
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
  if (comm_.size() == 1 && part.data_ptr() != arriving_.flat().data_ptr()) arriving_.flat().copy_(part);
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

}  // namespace tessera
