#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/comm/communicator.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "fsdp/buffer_pool.h"
#include "fsdp/row_source.h"
#include "fsdp/row_spec.h"
#include "fsdp/thread_gate.h"

namespace tessera::fsdp {

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
  /// For the rows of all units.
  const std::shared_ptr<ThreadGate>& gate() const { return gate_; }

 private:
  Communicator comm_;
  BufferPool buffers_;
  std::shared_ptr<ThreadGate> gate_ = std::make_shared<ThreadGate>();
  std::optional<Milestones> milestones_;
};

}  // namespace tessera::fsdp
