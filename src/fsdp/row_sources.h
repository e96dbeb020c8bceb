#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/comm/communicator.h>
#include <tessera/shard/partition.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/buffer_pool.h"
#include "fsdp/row_source.h"

namespace tessera::fsdp {

/// A row to make a source for.
struct RowSpec {
  int unit;          ///< its number
  std::string name;  ///< for messages
  Partition partition;
  at::ScalarType row_dtype;
  at::ScalarType shard_dtype;
};

/// Makes the sources of all units of a model: of one kind, since either the ranks share memory or they do not.
class RowSources {
 public:
  /// `buffer_bytes` as BufferPool takes it. Collective.
  RowSources(const Communicator& comm, int num_units, std::size_t buffer_bytes, bool shares);

  /// Collective.
  std::unique_ptr<RowSource> make(const RowSpec& spec) const;
  /// Whether all ranks read one copy.
  bool are_common() const { return milestones_.has_value(); }
  const BufferPool& buffers() const { return buffers_; }
  BufferPool& buffers() { return buffers_; }

 private:
  Communicator comm_;
  BufferPool buffers_;
  std::optional<Milestones> milestones_;
};

}  // namespace tessera::fsdp
