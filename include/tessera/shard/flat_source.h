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

  /// Memory for this rank's part, which an optimizer will write; uninitialised. It has bytes until after_write().
  virtual at::Tensor make_shard() = 0;
  /// Where one rank holds all of the flat parameter, the shard serves as that too, and the source is not asked again.
  virtual bool is_whole_itself() const { return true; }
  /// The flat parameter will probably be used soon: its part may be brought near. Not collective.
  virtual void expect() {}
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
  /// Whether it keeps the shard's gradient: then keep_gradient() gets each average, and adds it to what it has if
  /// `shard` has a gradient. Returns what stands for it in the shard's `grad()`.
  virtual bool keeps_gradient() const { return false; }
  virtual at::Tensor keep_gradient(const at::Tensor& shard, const at::Tensor& average) {
    static_cast<void>(shard);
    return average;
  }
  /// Called before the shard's values are read other than by start(), and behind it. Blocks: until they are there.
  virtual void before_read() {}
  virtual void after_read() {}
};

/// The sources of all flat parameters of a model.
class FlatSources {
 public:
  virtual ~FlatSources() = default;

  /// Collective: every rank calls it for the same flat parameters in the same order.
  virtual std::unique_ptr<FlatSource> make(const FlatSpec& spec) = 0;
  /// The memory of flat parameters while they are used. Its figures are those that the model reports.
  virtual BufferPool& buffers() = 0;
  /// Of how many flat parameters that come next expect() is to be called.
  virtual std::size_t num_expected() const { return 0; }
  /// For sources that write to shards without an operator, as an optimizer's step through TrainedMemory does: they call
  /// `begin` before, which may throw, and `end` when it is over.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): others keep them
  virtual void on_writes(std::function<void()> /*begin*/, std::function<void()> /*end*/) {}
};

/// Describes the sources that a model needs.
struct FlatSourcesSpec {
  Communicator ranks;        ///< that hold the parts
  int num_flat_parameters;   ///< that will be asked for
  std::size_t buffer_bytes;  ///< as BufferPool takes it: of the largest one, or 0 when all are there at once
  c10::Device device;        ///< of the parameters
  // Not exact, but never less than what is needed:
  std::size_t whole_bytes = 0;         ///< of flat parameters that are whole at a time: those in use and the next ones
  std::size_t part_bytes = 0;          ///< of this rank's parts
  std::size_t largest_part_bytes = 0;  ///< of one of them
};

/// Collective: over the ranks.
using MakeFlatSources = std::function<std::shared_ptr<FlatSources>(const FlatSourcesSpec& spec)>;

}  // namespace tessera
