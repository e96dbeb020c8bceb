#pragma once

#include <tessera/comm/common_memory.h>
#include <tessera/shard/row_source.h>

#include <memory>
#include <optional>

namespace tessera::fsdp {

/// As host_pages; its error tells what memory is used for, where that is counted.
std::shared_ptr<void> own_pages(std::size_t num_bytes);

/// Of memory that the group moves with the fewest copies, where it has such; else of the process's own, which large
/// tensors use as well. `buffer_bytes`: as BufferPool takes it.
BufferPool row_buffers(const Communicator& comm, std::size_t buffer_bytes, c10::Device device);

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
