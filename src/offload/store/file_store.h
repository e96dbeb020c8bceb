#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::offload {

class FileStore;
class FileWorker;
struct BlockState;
struct TransferState;

/// Bytes that lie in the files of a FileStore. They are free again when the last copy of this, and the last transfer of
/// them, are gone. Bytes that were never written are zeros.
class FileBlock {
 public:
  FileBlock() = default;

  std::uint64_t num_bytes() const;
  explicit operator bool() const { return state_ != nullptr; }

 private:
  friend class FileStore;
  explicit FileBlock(std::shared_ptr<BlockState> state) : state_(std::move(state)) {}

  std::shared_ptr<BlockState> state_;
};

/// Bytes on their way between memory and files.
/// Thread-safety: as a pointer; what it refers to may be used from any thread.
class Transfer {
 public:
  /// Of nothing, and so done.
  Transfer() = default;

  bool is_done() const;
  /// Throws StorageError that names the folder, the bytes and what they are, if it failed: then the memory that was
  /// read into, or the bytes that were written, hold anything. Blocks: until it is over.
  void wait() const;

 private:
  friend class FileStore;
  explicit Transfer(std::shared_ptr<TransferState> state) : state_(std::move(state)) {}

  std::shared_ptr<TransferState> state_;
};

/// What a FileStore has done so far.
struct FileTraffic {
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t num_repeated = 0;  ///< requests that were made again, after an error or damage
  double busy_seconds = 0;         ///< in which at least one request was at a disk
};

/// Blocks of bytes in unnamed files. A thread of its own keeps several requests at the disks; every chunk has a
/// checksum in memory, and one that reads otherwise is read again and then refused.
/// Thread-safety: all members may be called from any thread.
class FileStore {
 public:
  /// What has one checksum. Transfers begin at multiples of it.
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  /// One file in each folder; bytes are spread over them. Throws StorageError, ConfigError.
  explicit FileStore(std::vector<std::filesystem::path> folders);
  /// Transfers that have not begun fail; the others are waited for.
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  /// Room for so many bytes more, in one step: fewer and longer pieces of the disk. Throws StorageError.
  void reserve(std::uint64_t num_bytes);
  /// `what` is for messages: "the parameters of blocks.3". Throws StorageError where the disks are full.
  FileBlock make_block(std::uint64_t num_bytes, std::string what);

  /// From `offset` bytes behind the block's beginning on. `keeper` keeps the memory until the transfer is done; until
  /// then what is written must not change. A transfer waits for those of the same bytes that were started before, if
  /// one of the two writes.
  /// Requires: the offset is a multiple of kChunkBytes, and so is the length unless it ends with the block; the memory
  /// begins at a multiple of alignment() and goes on up to one (see padded()).
  Transfer read(const FileBlock& block, std::uint64_t offset, std::span<std::byte> into, std::shared_ptr<void> keeper);
  Transfer write(const FileBlock& block, std::uint64_t offset, std::span<const std::byte> bytes,
                 std::shared_ptr<void> keeper);

  /// Whether a transfer that reads it would have to wait for one that writes.
  bool is_being_written(const FileBlock& block) const;

  std::size_t alignment() const;
  /// The bytes of memory that a transfer of so many touches.
  std::size_t padded(std::size_t num_bytes) const { return (num_bytes + alignment() - 1) / alignment() * alignment(); }
  FileTraffic traffic() const;
  /// How the bytes go: "direct I/O, io_uring", for logs.
  std::string text() const;

 private:
  std::shared_ptr<FileWorker> worker_;  // blocks keep it too
};

}  // namespace tessera::offload
