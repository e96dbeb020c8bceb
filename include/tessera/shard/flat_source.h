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

/// A flat parameter, of which each rank keeps a part: the parameters of a unit, one behind the other.
struct FlatSpec {
  int unit;          ///< its number
  std::string name;  ///< for messages
  Partition partition;
  c10::ScalarType compute_dtype;  ///< of the flat parameter, with which forward and backward compute
  c10::ScalarType shard_dtype;    ///< of the parts, which an optimizer trains
  c10::Device device;             ///< of the parameters
};

/// Where a flat parameter comes from when it is used, and where this rank's part of it is kept: peers, memory that
/// ranks share, the host, a file.
class FlatSource {
 public:
  virtual ~FlatSource() = default;

  /// Memory for this rank's part, which an optimizer will write; uninitialised.
  virtual at::Tensor make_shard() const = 0;
  /// Starts to transfer the parts of all ranks. Collective.
  virtual void start(const at::Tensor& shard) = 0;
  /// Waits for all parts and gives them to `flat`. Not before this call, since other threads may read `flat` too.
  virtual void finish(HollowStorage& flat) = 0;
  /// Nobody reads `flat` any more. Its bytes are released, or kept aside for the next time.
  virtual void release(HollowStorage& flat, bool keep_bytes, const std::string& why) = 0;
  /// Gives `flat` bytes of this rank alone until release(), because they will be written to. Requires: finished.
  virtual void own(HollowStorage& flat) = 0;
  /// Called before the shard is written to. Blocks: until no rank reads what a write would change.
  virtual void before_write() = 0;
  /// All or a part of the shard was written: an operator has ended, or a load.
  virtual void after_write() {}
};

/// The sources of all flat parameters of a model.
class FlatSources {
 public:
  virtual ~FlatSources() = default;

  /// Collective: every rank calls it for the same flat parameters in the same order.
  virtual std::unique_ptr<FlatSource> make(const FlatSpec& spec) = 0;
  /// The memory of flat parameters while they are used. Its figures are those that the model reports.
  virtual BufferPool& buffers() = 0;
};

/// Describes the sources that a model needs.
struct FlatSourcesSpec {
  Communicator ranks;        ///< that hold the parts
  int num_flat_parameters;   ///< that will be asked for
  std::size_t buffer_bytes;  ///< as BufferPool takes it: of the largest one, or 0 when all are there at once
  c10::Device device;        ///< of the parameters
};

/// Collective: over the ranks.
using MakeFlatSources = std::function<std::shared_ptr<FlatSources>(const FlatSourcesSpec& spec)>;

}  // namespace tessera
