#include "fsdp/gathered_row.h"

#include <ATen/ATen.h>

#include <utility>

namespace tessera::fsdp {

GatheredRow::GatheredRow(Communicator comm, RowSpec spec, BufferPool buffers)
    : comm_(std::move(comm)), spec_(std::move(spec)), buffers_(std::move(buffers)), arriving_(make_arriving()) {}

HollowStorage GatheredRow::make_arriving() const {
  return {spec_.partition.num_elements(), spec_.row_dtype, spec_.device, "parameters are on their way to this memory"};
}

at::Tensor GatheredRow::make_shard() const {
  return comm_.empty({spec_.partition.of(comm_.rank()).size},
                     at::TensorOptions(spec_.shard_dtype).device(spec_.device));
}

void GatheredRow::start(const at::Tensor& shard) {
  // Exchanged, not moved from: a DataPtr that was moved from still has its address.
  c10::DataPtr kept = std::exchange(kept_, c10::DataPtr());
  arriving_.give(kept ? std::move(kept) : buffers_.lend(static_cast<std::size_t>(arriving_.num_bytes())));
  at::Tensor part = shard;
  if (spec_.row_dtype != spec_.shard_dtype) {
    // What travels is what is computed with.
    const Range mine = spec_.partition.of(comm_.rank());
    part = arriving_.row().narrow(0, mine.start, mine.size);
    part.copy_(shard);
  }
  if (comm_.size() > 1) gather_ = comm_.all_gather_into_async(arriving_.row(), part, spec_.partition.sizes());
}

void GatheredRow::finish(HollowStorage& row) {
  Work gather = std::exchange(gather_, Work());
  try {
    if (comm_.size() > 1) gather.wait();
  } catch (...) {
    // Parts may still come, to tensors that the group holds: nobody else gets their memory before.
    arriving_ = make_arriving();
    throw;
  }
  row.give(arriving_.take(""));
}

void GatheredRow::release(HollowStorage& row, bool keep_bytes, const std::string& why) {
  c10::DataPtr bytes = row.take(why);
  if (keep_bytes) kept_ = std::move(bytes);
}

}  // namespace tessera::fsdp
