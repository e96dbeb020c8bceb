#pragma once

#include <tessera/disk/request_ring.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "offload/store/extent_map.h"
#include "offload/store/file_store.h"
#include "offload/store/swap_files.h"

namespace tessera::offload {

/// What is known of a chunk in the files.
struct ChunkSum {
  enum class Is { kZero, kWritten, kLost };  ///< lost: a write of it failed, so it may hold anything
  Is is = Is::kZero;
  std::uint64_t checksum = 0;
};

struct BlockState {
  ~BlockState();

  std::shared_ptr<FileWorker> worker;
  Extent extent;
  std::uint64_t num_bytes = 0;
  std::string what;
  // Guarded by the worker's mutex:
  std::vector<ChunkSum> chunks;
  std::string write_error;  // of a chunk that is lost
  std::list<TransferState*> under_way;
};

struct TransferState {
  std::shared_ptr<BlockState> block;
  bool writes = false;
  std::uint64_t offset = 0;     // in the block
  std::span<std::byte> memory;  // without what is there for the alignment
  std::shared_ptr<void> keeper;
  // Guarded by the worker's mutex:
  std::size_t num_chunks_left = 0;
  std::string error;  // "": none. In words: each thread that waits throws an error of its own

  std::uint64_t end() const { return offset + memory.size(); }
};

/// The thread of a FileStore, its files, and what lies where in them.
class FileWorker : public std::enable_shared_from_this<FileWorker> {
 public:
  explicit FileWorker(std::vector<std::filesystem::path> folders);
  void begin();
  /// Joins the thread.
  void end();

  void reserve(std::uint64_t num_bytes);
  std::shared_ptr<BlockState> make_block(std::uint64_t num_bytes, std::string what);
  void free(const Extent& extent);

  /// Blocks: while a transfer of the same bytes is under way, if one of the two writes.
  void start(const std::shared_ptr<TransferState>& transfer);
  bool is_being_written(const BlockState& block) const;
  bool is_done(const TransferState& transfer) const;
  void wait(const TransferState& transfer) const;

  const SwapFiles& files() const { return files_; }
  bool has_ring() const { return ring_ != nullptr; }
  FileTraffic traffic() const;

 private:
  /// A part of a transfer with a checksum of its own.
  struct Chunk {
    std::shared_ptr<TransferState> transfer;
    std::size_t index;            // in the block
    std::span<std::byte> memory;  // with what is there for the alignment
    std::size_t num_bytes;        // without
    std::uint64_t checksum = 0;
    int num_tries = 0;
    int num_requests = 0;  // under way
    int error = 0;
    std::size_t failed_file = 0;
  };
  /// A part of a chunk that lies in one file.
  struct Request {
    std::shared_ptr<Chunk> chunk;
    SwapFiles::Place place;
    std::span<std::byte> memory;
  };

  void run();
  std::shared_ptr<Chunk> next();
  void begin(const std::shared_ptr<Chunk>& chunk);
  void submit(std::unique_ptr<Request> request);
  void take_completion();
  void complete(std::unique_ptr<Request> request, int result);
  void end(const std::shared_ptr<Chunk>& chunk);
  bool holds_what_was_written(const Chunk& chunk) const;
  std::string fault_of(const Chunk& chunk, bool is_damaged) const;
  /// `error`: "" if all went well.
  void finish(const Chunk& chunk, const std::string& error);
  std::uint64_t place_of(const Chunk& chunk) const;

  static bool conflict(const TransferState& a, const TransferState& b);
  bool waits_for_another(const TransferState& transfer) const;

  SwapFiles files_;
  std::thread thread_;

  // Of the thread alone:
  std::unique_ptr<disk::RequestRing> ring_;                    // null: the system gives none
  std::deque<std::pair<std::unique_ptr<Request>, int>> done_;  // without a ring
  std::size_t num_under_way_ = 0;                              // requests

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;  // a transfer is done, or there is a new one
  ExtentMap extents_;
  std::deque<std::shared_ptr<Chunk>> reads_;  // that have not begun; before all writes: somebody waits for them
  std::deque<std::shared_ptr<Chunk>> writes_;
  bool is_ending_ = false;
  FileTraffic traffic_;
};

}  // namespace tessera::offload
