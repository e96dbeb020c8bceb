#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/shard/partition.h>

#include <cstdint>
#include <string>

#include "fsdp/row_source.h"

namespace tessera::fsdp {

/// A row that lies once in memory that all ranks see, each one's part in its place: nothing is gathered.
///
/// Note [Readers and writers of a common row]
/// Each rank counts how often it has begun to use the row. It says "ready" with that number when its part holds what
/// its optimizer wrote, and reads when all are ready. It says "done" with it when it reads no more, and writes its part
/// when all are done. So nobody reads what is half written, and a quick rank's optimizer waits for the slowest backward
/// pass of this unit alone. Where parts are cast into the row, the optimizer writes elsewhere and waits for nobody: the
/// cast does, when the unit is next used.
class CommonRow : public RowSource {
 public:
  /// The kinds of milestones of a unit.
  static constexpr int kNumKinds = 2;

  /// With a shard of another dtype than the row's, each rank casts its part into the row before it is used; else the
  /// shard is that part.
  CommonRow(CommonMemory memory, Milestones milestones, int unit, std::string name, Range mine,
            at::ScalarType row_dtype, at::ScalarType shard_dtype);
  ~CommonRow() override;

  at::Tensor make_shard() const override;
  void start(HollowStorage& row, const at::Tensor& shard) override;
  void finish() override;
  void release(HollowStorage& row, bool keep_bytes, const std::string& why) override;
  void before_write() override;

 private:
  bool casts() const { return row_dtype_ != shard_dtype_; }
  at::Tensor part() const;
  void await_readers() const;
  int ready() const { return unit_ * kNumKinds; }
  int done() const { return unit_ * kNumKinds + 1; }

  CommonMemory memory_;
  Milestones milestones_;
  int unit_;
  std::string name_;
  Range mine_;
  at::ScalarType row_dtype_;
  at::ScalarType shard_dtype_;
  std::uint32_t number_ = 0;
  bool may_write_ = true;  // all ranks are done with the present number
  bool is_stale_ = true;   // the row lacks what was written to the shard
};

}  // namespace tessera::fsdp
