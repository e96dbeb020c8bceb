#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/partition.h>

#include "fsdp/buffer_pool.h"
#include "fsdp/row_source.h"

namespace tessera::fsdp {

/// A row that every rank assembles from the others' parts, in memory of its own.
class GatheredRow : public RowSource {
 public:
  GatheredRow(Communicator comm, const Partition& partition, at::ScalarType row_dtype, at::ScalarType shard_dtype,
              BufferPool buffers);

  at::Tensor make_shard() const override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& row) override;
  void release(HollowStorage& row, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& /*row*/) override {}
  void before_write() override {}

 private:
  HollowStorage make_arriving() const;

  Communicator comm_;
  Partition partition_;
  at::ScalarType row_dtype_;
  at::ScalarType shard_dtype_;
  BufferPool buffers_;
  Work gather_;
  HollowStorage arriving_;  // the row, until all parts are there
  c10::DataPtr kept_;       // bytes for the next time, which nobody may read: they are of the past
};

}  // namespace tessera::fsdp
