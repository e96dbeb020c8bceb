#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/shard/row_source.h>

#include <cstdint>
#include <string>

namespace tessera::fsdp {

/// A row that lies once in memory that all ranks see, each one's part in its place: nothing is gathered.
///
/// Note [Readers and writers of a common row]
/// Each rank counts how often it has begun to use the row. It says "ready" with that number when its part holds what
/// its optimizer wrote, and reads when all are ready. It says "done" with it when it reads no more, and writes its part
/// when all are done. So nobody reads what is half written, and a quick rank's optimizer waits for the slowest backward
/// pass of this unit alone. Where parts are cast into the row, the optimizer writes elsewhere and waits for nobody: the
/// cast does, when the unit is next used.
///
/// An operator that writes to parameters runs on every rank, and would change the one copy as often. So each rank runs
/// it on a copy of its own, and is done with the row.
class CommonRow : public RowSource {
 public:
  /// The kinds of milestones of a unit.
  static constexpr int kNumKinds = 2;

  /// With a shard of another dtype than the row's, each rank casts its part into the row before it is used; else the
  /// shard is that part.
  CommonRow(CommonMemory memory, Milestones milestones, RowSpec spec, int rank, BufferPool buffers);
  ~CommonRow() override;

  at::Tensor make_shard() const override;
  void start(const at::Tensor& shard) override;
  void finish(HollowStorage& row) override;
  void release(HollowStorage& row, bool keep_bytes, const std::string& why) override;
  void own(HollowStorage& row) override;
  void before_write() override;

 private:
  bool casts() const { return spec_.row_dtype != spec_.shard_dtype; }
  at::Tensor part() const;
  void await_readers() const;
  int ready() const { return spec_.unit * kNumKinds; }
  int done() const { return spec_.unit * kNumKinds + 1; }

  CommonMemory memory_;
  Milestones milestones_;
  RowSpec spec_;
  Range mine_;
  BufferPool buffers_;  // for rows that are this rank's own
  std::uint32_t number_ = 0;
  bool owns_ = false;      // what is in use is a copy
  bool may_write_ = true;  // all ranks are done with the present number
  bool is_stale_ = true;   // the row lacks what was written to the shard
};

}  // namespace tessera::fsdp
