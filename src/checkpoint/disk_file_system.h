#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace tessera::checkpoints {

class DirectWriters;

struct DiskOptions {
  /// Write long stretches past the page cache where the system lets us. False: everything through it.
  bool direct = true;
  /// Gets a line when a file is written through the page cache though it was to be direct, once a reason.
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
  std::weak_ptr<DirectWriters> writers_;  // the files own them, so that their buffers go with the last file
};

}  // namespace tessera::checkpoints
