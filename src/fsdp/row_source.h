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
  /// `row` holds the parts of all ranks when finish() has returned. Collective.
  virtual void start(HollowStorage& row, const at::Tensor& shard) = 0;
  virtual void finish() = 0;
  /// Nobody reads `row` any more. Its bytes go; or stay, to be overwritten next time.
  virtual void release(HollowStorage& row, bool keep_bytes, const std::string& why) = 0;
  /// Called before the shard is written to. Blocks: until no rank reads what a write would change.
  virtual void before_write() = 0;
};

}  // namespace tessera::fsdp
