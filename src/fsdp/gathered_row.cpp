#include "fsdp/gathered_row.h"

#include <ATen/ATen.h>

#include <utility>

namespace tessera::fsdp {

GatheredRow::GatheredRow(Communicator comm, const Partition& partition, at::ScalarType shard_dtype, BufferPool buffers)
    : comm_(std::move(comm)), partition_(partition), shard_dtype_(shard_dtype), buffers_(std::move(buffers)) {}

at::Tensor GatheredRow::make_shard() const {
  return comm_.empty({partition_.of(comm_.rank()).size}, at::TensorOptions(shard_dtype_));
}

void GatheredRow::start(HollowStorage& row, const at::Tensor& shard) {
  if (!row.has_bytes()) row.give(buffers_.lend(static_cast<std::size_t>(row.num_bytes())));
  at::Tensor part = shard;
  if (row.row().scalar_type() != shard_dtype_) {
    // What travels is what is computed with.
    const Range mine = partition_.of(comm_.rank());
    part = row.row().narrow(0, mine.start, mine.size);
    part.copy_(shard);
  }
  if (comm_.size() > 1) gather_ = comm_.all_gather_into_async(row.row(), part, partition_.sizes());
}

void GatheredRow::finish() {
  if (comm_.size() > 1) gather_.wait();
  gather_ = Work();
}

void GatheredRow::release(HollowStorage& row, bool keep_bytes, const std::string& why) {
  if (!keep_bytes) row.take(why);
}

}  // namespace tessera::fsdp
