#include "fsdp/rank_rows.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "fsdp/common_row.h"
#include "fsdp/gathered_row.h"

namespace tessera::fsdp {

AllocateBytes memory_of(const Communicator& comm) {
  if (!comm.allocator()) return host_pages;
  return [comm](std::size_t num_bytes) -> std::shared_ptr<void> {
    auto tensor = std::make_shared<at::Tensor>(comm.empty({static_cast<std::int64_t>(num_bytes)}, at::kByte));
    return {tensor, tensor->mutable_data_ptr()};
  };
}

RankRows::RankRows(const RowSourcesSpec& spec, bool shares)
    : comm_(spec.ranks), buffers_(memory_of(spec.ranks), spec.buffer_bytes, spec.device) {
  if (shares && comm_.size() > 1) milestones_ = Milestones::make(comm_, spec.num_rows * CommonRow::kNumKinds);
}

std::unique_ptr<RowSource> RankRows::make(const RowSpec& spec) {
  if (!milestones_) return std::make_unique<GatheredRow>(comm_, spec, buffers_);
  const auto num_bytes = static_cast<std::size_t>(spec.partition.num_elements()) * c10::elementSize(spec.row_dtype);
  CommonMemory memory = CommonMemory::make(comm_, num_bytes).value();
  return std::make_unique<CommonRow>(std::move(memory), *milestones_, spec, comm_.rank(), buffers_);
}

}  // namespace tessera::fsdp
