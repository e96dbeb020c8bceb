#pragma once

#include <tessera/core/descriptor.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/direct_writer.h"
#include "checkpoint/file_system.h"

namespace tessera::checkpoints {

/// A file of the disk. Long stretches go past the page cache, the rest through it: Note [Direct and buffered bytes].
class DiskFile : public OutputFile {
 public:
  /// Without `writers` everything goes through the page cache. `tell` gets a line when the system refuses direct I/O
  /// for this file, from the thread that writes.
  DiskFile(std::filesystem::path path, Descriptor file, std::shared_ptr<DirectWriters> writers,
           std::function<void(const std::string&)> tell);

  void write(std::vector<WriteRange> ranges) override;
  void sync() override;

 private:
  void open_direct();
  void write_buffered(const WriteStretch& stretch);
  /// False when the system refuses; then the bytes are still to be written.
  bool write_direct(const WriteStretch& stretch);
  void refuse_direct(const std::string& what, int error);

  std::filesystem::path path_;
  Descriptor file_;
  Descriptor direct_;
  std::shared_ptr<DirectWriters> writers_;
  std::function<void(const std::string&)> tell_;
  std::size_t alignment_ = 0;
  std::atomic<bool> is_direct_ = false;
};

}  // namespace tessera::checkpoints
