#pragma once

#include <tessera/shard/hollow_storage.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::fsdp {

/// Where the row of a unit comes from when it is used, and where this rank's part of it is kept.
class RowSource {
 public:
  virtual ~RowSource() = default;

  /// Memory for this rank's part, which an optimizer will write; uninitialised.
  virtual at::Tensor make_shard() const = 0;
  /// The parts of all ranks begin to travel. Collective.
  virtual void start(const at::Tensor& shard) = 0;
  /// They have come: `row` holds them. Not before, since other threads look at it too.
  virtual void finish(HollowStorage& row) = 0;
  /// Nobody reads `row` any more. Its bytes go; or are kept aside, for the next time.
  virtual void release(HollowStorage& row, bool keep_bytes, const std::string& why) = 0;
  /// The bytes of `row` are this rank's own from here to release(): somebody will write to them. Requires: finished.
  virtual void own(HollowStorage& row) = 0;
  /// Called before the shard is written to. Blocks: until no rank reads what a write would change.
  virtual void before_write() = 0;
};

}  // namespace tessera::fsdp
