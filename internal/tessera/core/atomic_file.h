#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace tessera {

/// A file that appears under its name complete or not at all: it is written under another name in the same folder,
/// brought to the disk and then renamed. A former file of that name stays until then. An object that is destroyed
/// before that removes what it wrote. Thread-safety: write_at() may be called from several threads at once.
class AtomicFile {
 public:
  /// Throws StorageError when no file can be created in the folder.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Blocks: until the system took the bytes. Throws StorageError.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Brings the bytes to the disk, gives the file its name, and brings that to the disk too.
  /// Blocks: for the disk. Throws StorageError; then the name has the former file or, if only the last step failed, the
  /// new one.
  void commit();

  /// The steps of commit(), for files that get their names together: sync() brings the bytes to the disk, publish()
  /// gives the name. The names survive a crash once sync_folder() was called too. Blocks: for the disk. They throw
  /// StorageError.
  void sync();
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path draft_;  // empty when there is nothing to remove
  Descriptor file_;
};

/// Brings the names of a folder's files to the disk. An empty path is the working folder.
/// Blocks: for the disk. Throws StorageError.
void sync_folder(const std::filesystem::path& folder);

/// Writes a file with this text, which appears complete or not at all.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace tessera
