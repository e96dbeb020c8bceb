#include "fsdp/row_sources.h"

#include <utility>

#include "fsdp/common_row.h"
#include "fsdp/gathered_row.h"

namespace tessera::fsdp {

RowSources::RowSources(const Communicator& comm, int num_units, std::size_t buffer_bytes, bool shares)
    : comm_(comm), buffers_(comm, buffer_bytes) {
  if (shares && comm.size() > 1) milestones_ = Milestones::make(comm, num_units * CommonRow::kNumKinds);
}

std::unique_ptr<RowSource> RowSources::make(const RowSpec& spec) const {
  if (!milestones_)
    return std::make_unique<GatheredRow>(comm_, spec.partition, spec.row_dtype, spec.shard_dtype, buffers_);
  const auto num_bytes = static_cast<std::size_t>(spec.partition.num_elements()) * c10::elementSize(spec.row_dtype);
  CommonMemory memory = CommonMemory::make(comm_, num_bytes).value();
  return std::make_unique<CommonRow>(std::move(memory), *milestones_, spec, comm_.rank(), buffers_);
}

}  // namespace tessera::fsdp
