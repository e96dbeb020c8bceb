#pragma once

#include <tessera/core/descriptor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/disk/direct_writer.h"
#include "checkpoint/disk/file_system.h"

namespace tessera::checkpoints {

/// A file of the disk. Long extents go past the page cache, the rest through it: Note [Direct and buffered bytes].
class DiskFile : public OutputFile {
 public:
  /// Without `writers` everything goes through the page cache. `tell` is called with a line, on the writing thread,
  /// when the system refuses direct I/O for this file.
  DiskFile(std::filesystem::path path, Descriptor file, std::shared_ptr<DirectWriters> writers,
           std::function<void(const std::string&)> tell);

  void write(std::vector<WriteRange> ranges) override;
  void sync() override;

 private:
  void open_direct();
  void write_buffered(const WriteExtent& extent);
  /// False when the system refuses; then the bytes are still to be written.
  bool write_direct(const WriteExtent& extent);
  void refuse_direct(const std::string& what, int error);

  std::filesystem::path path_;
  Descriptor file_;
  Descriptor direct_;
  std::shared_ptr<DirectWriters> writers_;
  std::function<void(const std::string&)> tell_;
  std::size_t alignment_ = 0;
  std::atomic<bool> is_direct_ = false;
};

class DirectWriters;

struct DiskOptions {
  /// Write long extents past the page cache where the system lets us. False: everything through it.
  bool direct = true;
  /// Called with a line, once for each reason, when a file that should be written directly goes through the page cache.
  std::function<void(const std::string&)> tell = nullptr;
};

/// The file systems of the machine.
class DiskFileSystem : public FileSystem {
 public:
  explicit DiskFileSystem(DiskOptions options = {});

  bool exists(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& folder) override;
  std::optional<std::string> read(const std::filesystem::path& path) override;
  void make_folder(const std::filesystem::path& path) override;
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path, std::uint64_t num_bytes) override;
  std::unique_ptr<OutputFile> open(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b,
                const std::filesystem::path& aside) override;
  void remove_file(const std::filesystem::path& path) override;
  void remove_folder(const std::filesystem::path& path) override;

 private:
  /// Null when direct I/O is off.
  std::shared_ptr<DirectWriters> writers();

  DiskOptions options_;
  std::mutex mutex_;
  std::weak_ptr<DirectWriters> writers_;  // the files own them, so that the last file frees their buffers
};

}  // namespace tessera::checkpoints
