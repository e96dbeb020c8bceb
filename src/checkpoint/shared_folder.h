#pragma once

#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/comm/communicator.h>
#include <tessera/core/byte_count.h>
#include <tessera/core/log.h>
#include <tessera/observe/transfer_line.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "checkpoint/disk/disk_file_system.h"

namespace tessera::checkpoints {

/// One rank's view of the checkpoint folder that ranks share: its path, its options, the other ranks, and the log and
/// terminal for messages. Saving, loading and cleaning up all use it.
class SharedFolder {
 public:
  SharedFolder(std::filesystem::path path, Communicator comm, const CheckpointOptions& options);
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const CheckpointOptions& options() const { return options_; }
  DiskFileSystem& files() { return files_; }

  const Communicator& comm() const { return comm_; }
  bool leads() const { return comm_.rank() == 0; }
  /// For exchanges after ranks have written or read: a disk may take much longer than a message.
  Communicator comm_for_long_waits() const;

  const Logger& log() const { return log_; }
  /// Shows the progress of a transfer while the line lives. Only that of this rank: rank 0 would have to ask the others
  /// for theirs.
  observe::TransferLine line_of(const char* verb, std::int64_t step, std::shared_ptr<const ByteCount> count) const;
  /// Does nothing when the options want no progress shown. Requires: nothing is under way that logs or draws.
  void show_on(std::shared_ptr<observe::Terminal> terminal);

 private:
  void draw_on(std::shared_ptr<observe::Terminal> terminal);

  std::filesystem::path path_;
  Communicator comm_;
  CheckpointOptions options_;
  std::shared_ptr<observe::Terminal> terminal_;
  Logger log_;
  DiskFileSystem files_;
};

}  // namespace tessera::checkpoints
