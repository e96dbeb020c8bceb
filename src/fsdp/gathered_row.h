#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/partition.h>

#include "fsdp/buffer_pool.h"
#include "fsdp/row_source.h"

namespace tessera::fsdp {

/// A row that every rank assembles from the others' parts, in memory of its own.
class GatheredRow : public RowSource {
 public:
  GatheredRow(Communicator comm, const Partition& partition, at::ScalarType shard_dtype, BufferPool buffers);

  at::Tensor make_shard() const override;
  void start(HollowStorage& row, const at::Tensor& shard) override;
  void finish() override;
  void release(HollowStorage& row, bool keep_bytes, const std::string& why) override;
  void before_write() override {}

 private:
  Communicator comm_;
  Partition partition_;
  at::ScalarType shard_dtype_;
  BufferPool buffers_;
  Work gather_;
};

}  // namespace tessera::fsdp
