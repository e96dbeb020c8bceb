#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/shard/row_source.h>

#include <memory>
#include <optional>

namespace tessera::fsdp {

/// Memory that the group moves with the fewest copies, where it has such; else pages of the process's own.
AllocateBytes memory_of(const Communicator& comm);

/// Rows that lie with the ranks themselves: of one kind, since either they share memory or they do not.
class RankRows : public RowSources {
 public:
  /// `shares`: all read one copy, where they can. Collective.
  RankRows(const RowSourcesSpec& spec, bool shares);

  std::unique_ptr<RowSource> make(const RowSpec& spec) override;
  BufferPool& buffers() override { return buffers_; }

 private:
  Communicator comm_;
  BufferPool buffers_;
  std::optional<Milestones> milestones_;
};

}  // namespace tessera::fsdp
