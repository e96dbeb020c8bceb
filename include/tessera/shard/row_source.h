#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/buffer_pool.h>
#include <tessera/shard/hollow_storage.h>
#include <tessera/shard/partition.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace tessera {

/// A row of elements, of which each rank keeps a part: the parameters of a unit.
struct RowSpec {
  int unit;          ///< its number
  std::string name;  ///< for messages
  Partition partition;
  c10::ScalarType row_dtype;    ///< in which it is computed with
  c10::ScalarType shard_dtype;  ///< in which parts are trained
  c10::Device device;           ///< of the parameters
};

/// Where a row comes from when it is used, and where this rank's part of it is kept: peers, memory that ranks share,
/// the host, a file.
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
  /// What was to be written is in the shard, all or a part of it: an operator has ended, or a load.
  virtual void after_write() {}
};

/// The sources of all rows of a model.
class RowSources {
 public:
  virtual ~RowSources() = default;

  /// Collective: every rank asks for the same rows in the same order.
  virtual std::unique_ptr<RowSource> make(const RowSpec& spec) = 0;
  /// What rows are lent while they are used: its figures are those of the model's.
  virtual BufferPool& buffers() = 0;
};

/// What there will be rows of.
struct RowSourcesSpec {
  Communicator ranks;        ///< that hold the parts
  int num_rows;              ///< that will be asked for
  std::size_t buffer_bytes;  ///< as BufferPool takes it: of the largest row, or 0 when all are there at once
  c10::Device device;        ///< of the parameters
};

/// Collective: over the ranks.
using MakeRowSources = std::function<std::shared_ptr<RowSources>(const RowSourcesSpec& spec)>;

}  // namespace tessera
