#include "fsdp/rank_rows.h"

#include <tessera/core/error.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/thread_memory.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "fsdp/common_row.h"
#include "fsdp/gathered_row.h"

namespace tessera::fsdp {

std::shared_ptr<void> own_pages(std::size_t num_bytes) {
  try {
    return host_pages(num_bytes);
  } catch (const StorageError&) {
    const std::string why = intercept::why_no_memory(num_bytes);
    if (why.empty()) throw;
    throw StorageError(why);
  }
}

BufferPool row_buffers(const Communicator& comm, std::size_t buffer_bytes, c10::Device device) {
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

RankRows::RankRows(const RowSourcesSpec& spec, bool shares)
    : comm_(spec.ranks), buffers_(row_buffers(spec.ranks, spec.buffer_bytes, spec.device)) {
  if (shares && comm_.size() > 1) milestones_ = Milestones::make(comm_, spec.num_rows * CommonRow::kNumKinds);
}

std::unique_ptr<RowSource> RankRows::make(const RowSpec& spec) {
  if (!milestones_) return std::make_unique<GatheredRow>(comm_, spec, buffers_);
  const auto num_bytes = static_cast<std::size_t>(spec.partition.num_elements()) * c10::elementSize(spec.row_dtype);
  CommonMemory memory = CommonMemory::make(comm_, num_bytes).value();
  return std::make_unique<CommonRow>(std::move(memory), *milestones_, spec, comm_.rank(), buffers_);
}

}  // namespace tessera::fsdp
