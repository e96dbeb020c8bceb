#pragma once

#include <tessera/checkpoint/checkpoint_options.h>
#include <tessera/comm/communicator.h>
#include <tessera/core/byte_count.h>
#include <tessera/core/log.h>
#include <tessera/observe/transfer_line.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "checkpoint/disk_file_system.h"

namespace tessera::checkpoints {

/// A folder of checkpoints as one of the ranks that share it has it: where it is, how it is written, who the others
/// are, and where people are told what happens in it. What saving, loading and cleaning up have in common.
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
  /// For what ranks say when they have written or read: a disk may take much longer than a message may.
  Communicator patient() const;

  const Logger& log() const { return log_; }
  /// How far a transfer of this rank is, while the line lives: rank 0 would have to ask for the bytes of the others.
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
