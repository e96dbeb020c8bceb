#pragma once

#include <tessera/core/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// Bytes, and the place of the first of them in a file.
struct WriteRange {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;

  std::uint64_t end() const { return offset + bytes.size(); }
};

/// A file that is being written, perhaps by others at the same time.
/// Thread-safety: all members may be called from any thread, for bytes that do not overlap.
class OutputFile {
 public:
  OutputFile() = default;
  virtual ~OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Few calls with many ranges are faster than many calls: neighbours are written together.
  /// Requires: no two overlap, all inside the file. Throws StorageError.
  /// Blocks: until the system took the bytes.
  virtual void write(std::vector<WriteRange> ranges) = 0;
  /// Brings everything that was written to the disk. When this throws StorageError, what the disk holds is unknown, and
  /// calling it again does not help: the system may have dropped the bytes. Blocks: for the disk.
  virtual void sync() = 0;
};

/// What a save depends on goes through this, so that tests can make it fail. Hints whose failure does no harm
/// (sync_file_range) stay inside DiskFileSystem. All members throw a StorageError that names the path, the reason, and
/// what to do. Thread-safety: all members may be called from any thread.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  virtual bool exists(const std::filesystem::path& path) = 0;
  /// The names in a folder, sorted; hidden ones too.
  virtual std::vector<std::string> list(const std::filesystem::path& folder) = 0;
  /// All of a small file; none when there is no such file.
  virtual std::optional<std::string> read(const std::filesystem::path& path) = 0;

  /// A new folder; an error when it exists.
  virtual void make_folder(const std::filesystem::path& path) = 0;
  /// A new file of that length; its space is reserved where the file system can do that. An error when it exists.
  virtual std::unique_ptr<OutputFile> create(const std::filesystem::path& path, std::uint64_t num_bytes) = 0;
  /// A file that exists.
  virtual std::unique_ptr<OutputFile> open(const std::filesystem::path& path) = 0;
  /// Brings the names in a folder to the disk: new, removed and changed ones.
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  /// A file under the new name is replaced, a folder is not.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Exchanges the names of `a` and `b` atomically. Where the file system cannot, renames `b` to `aside`, which must
  /// not exist, and then `a` to `b`; in between there is no `b`. Afterwards the former `b` is under `a`, or under
  /// `aside`.
  virtual void exchange(const std::filesystem::path& a, const std::filesystem::path& b,
                        const std::filesystem::path& aside) = 0;
  virtual void remove_file(const std::filesystem::path& path) = 0;
  /// With all that is in it.
  virtual void remove_folder(const std::filesystem::path& path) = 0;

  /// The disk, with direct I/O where it helps. See disk_file_system.h for one with options.
  static FileSystem& disk();
};

/// Creates a file with this text and brings its bytes to the disk, but not yet its name.
void write_new_file(FileSystem& files, const std::filesystem::path& path, std::string_view text);

/// Runs `action` and returns whether the disk did it: for actions that may fail without harm.
template <typename Action>
bool try_on_disk(const Action& action) {
  try {
    action();
    return true;
  } catch (const StorageError&) {
    return false;
  }
}

}  // namespace tessera::checkpoints
