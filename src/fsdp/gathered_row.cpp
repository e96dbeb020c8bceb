#include "fsdp/gathered_row.h"

#include <ATen/ATen.h>

#include <utility>

namespace tessera::fsdp {

GatheredRow::GatheredRow(Communicator comm, const Partition& partition, at::ScalarType row_dtype,
                         at::ScalarType shard_dtype, BufferPool buffers)
    : comm_(std::move(comm)),
      partition_(partition),
      row_dtype_(row_dtype),
      shard_dtype_(shard_dtype),
      buffers_(std::move(buffers)),
      arriving_(make_arriving()) {}

HollowStorage GatheredRow::make_arriving() const {
  return {partition_.num_elements(), row_dtype_, "parameters are on their way to this memory"};
}

at::Tensor GatheredRow::make_shard() const {
  return comm_.empty({partition_.of(comm_.rank()).size}, at::TensorOptions(shard_dtype_));
}

void GatheredRow::start(const at::Tensor& shard) {
  // Exchanged, not moved from: a DataPtr that was moved from still has its address.
  c10::DataPtr kept = std::exchange(kept_, c10::DataPtr());
  arriving_.give(kept ? std::move(kept) : buffers_.lend(static_cast<std::size_t>(arriving_.num_bytes())));
  at::Tensor part = shard;
  if (row_dtype_ != shard_dtype_) {
    // What travels is what is computed with.
    const Range mine = partition_.of(comm_.rank());
    part = arriving_.row().narrow(0, mine.start, mine.size);
    part.copy_(shard);
  }
  if (comm_.size() > 1) gather_ = comm_.all_gather_into_async(arriving_.row(), part, partition_.sizes());
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
