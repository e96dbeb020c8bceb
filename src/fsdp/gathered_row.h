#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/row_source.h>

namespace tessera::fsdp {

/// A row that every rank assembles from the others' parts, in memory of its own.
class GatheredRow : public RowSource {
 public:
  GatheredRow(Communicator comm, RowSpec spec, BufferPool buffers);

  at::Tensor make_shard() const override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& row) override;
  void release(HollowStorage& row, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& /*row*/) override {}
  void before_write() override {}

 private:
  HollowStorage make_arriving() const;

  Communicator comm_;
  RowSpec spec_;
  BufferPool buffers_;
  Work gather_;
  HollowStorage arriving_;  // the row, until all parts are there
  c10::DataPtr kept_;       // bytes for the next time, which nobody may read: they are of the past
};

}  // namespace tessera::fsdp
