#include "offload/store/file_worker.h"

#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>
#include <tessera/disk/disk_error.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace tessera::offload {
namespace {

constexpr std::size_t kMostRequests = 16;  // at the disks
constexpr std::size_t kMostOfChunk = 2;    // files that a chunk lies in
constexpr int kMostTries = 3;              // of a chunk
constexpr std::uint64_t kGrowth = std::uint64_t{64} << 20;

std::string why_closed(const BlockState& block) {
  return "offload: the store of " + block.what + " was closed before its bytes were on their way";
}

}  // namespace

BlockState::~BlockState() { worker->free(extent); }

FileWorker::FileWorker(std::vector<std::filesystem::path> folders)
    : files_(std::move(folders)), extents_(files_.alignment()) {}

void FileWorker::begin() {
  int error = 0;
  ring_ = disk::RequestRing::make(kMostRequests, 0, error);
  thread_ = std::thread([this] { run(); });
}

void FileWorker::end() {
  std::deque<std::shared_ptr<Chunk>> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    dropped.swap(reads_);
    dropped.insert(dropped.end(), writes_.begin(), writes_.end());
    writes_.clear();
  }
  changed_.notify_all();
  for (const auto& chunk : dropped) {
    finish(*chunk, why_closed(*chunk->transfer->block));
  }
  thread_.join();
}

// ---- room -----------------------------------------------------------------------------------------------------------

void FileWorker::reserve(std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t lacking = extents_.lacking(num_bytes);
  if (lacking == 0) return;
  files_.reserve(extents_.capacity() + lacking);
  extents_.grow(lacking);
}

std::shared_ptr<BlockState> FileWorker::make_block(std::uint64_t num_bytes, std::string what) {
  auto block = std::make_shared<BlockState>();
  block->worker = shared_from_this();
  block->num_bytes = num_bytes;
  block->what = std::move(what);
  block->chunks.resize((num_bytes + FileStore::kChunkBytes - 1) / FileStore::kChunkBytes);
  const std::lock_guard lock(mutex_);
  if (const std::uint64_t lacking = extents_.lacking(num_bytes); lacking > 0) {
    std::uint64_t growth = std::max(lacking, kGrowth);
    try {
      files_.reserve(extents_.capacity() + growth);
    } catch (const StorageError&) {
      if (growth == lacking) throw;
      growth = lacking;  // a disk that is nearly full may hold just this
      files_.reserve(extents_.capacity() + growth);
    }
    extents_.grow(growth);
  }
  block->extent = extents_.take(num_bytes).value();
  return block;
}

void FileWorker::free(const Extent& extent) {
  const std::lock_guard lock(mutex_);
  extents_.give_back(extent);
}

// ---- transfers ------------------------------------------------------------------------------------------------------

bool FileWorker::conflict(const TransferState& a, const TransferState& b) {
  return (a.writes || b.writes) && a.offset < b.end() && b.offset < a.end();
}

bool FileWorker::waits_for_another(const TransferState& transfer) const {
  const auto& others = transfer.block->under_way;
  return std::ranges::any_of(others, [&](const TransferState* other) { return conflict(*other, transfer); });
}

void FileWorker::start(const std::shared_ptr<TransferState>& transfer) {
  constexpr std::size_t kChunk = FileStore::kChunkBytes;
  BlockState& block = *transfer->block;
  if (transfer->offset % kChunk != 0 || transfer->end() > block.num_bytes ||
      (transfer->memory.size() % kChunk != 0 && transfer->end() != block.num_bytes) ||
      reinterpret_cast<std::uintptr_t>(transfer->memory.data()) % files_.alignment() != 0) {
    throw InternalError("offload: a transfer of " + block.what + " does not begin or end where a chunk does");
  }
  std::vector<std::shared_ptr<Chunk>> chunks;
  for (std::size_t done = 0; done < transfer->memory.size(); done += kChunk) {
    const std::size_t num_bytes = std::min(kChunk, transfer->memory.size() - done);
    const std::size_t padded = (num_bytes + files_.alignment() - 1) / files_.alignment() * files_.alignment();
    chunks.push_back(std::make_shared<Chunk>(Chunk{.transfer = transfer,
                                                   .index = static_cast<std::size_t>(transfer->offset + done) / kChunk,
                                                   .memory = {transfer->memory.data() + done, padded},
                                                   .num_bytes = num_bytes}));
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waits_for_another(*transfer); });
    if (is_ending_) throw StorageError(why_closed(block));
    transfer->num_chunks_left = chunks.size();
    if (chunks.empty()) return;
    block.under_way.push_back(transfer.get());
    auto& queue = transfer->writes ? writes_ : reads_;
    queue.insert(queue.end(), chunks.begin(), chunks.end());
  }
  changed_.notify_all();
}

bool FileWorker::is_being_written(const BlockState& block) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(block.under_way, [](const TransferState* one) { return one->writes; });
}

bool FileWorker::is_done(const TransferState& transfer) const {
  const std::lock_guard lock(mutex_);
  return transfer.num_chunks_left == 0;
}

void FileWorker::wait(const TransferState& transfer) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return transfer.num_chunks_left == 0; });
  if (!transfer.error.empty()) throw StorageError(transfer.error);
}

FileTraffic FileWorker::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void FileWorker::run() {
  auto began = std::chrono::steady_clock::now();
  while (true) {
    while (num_under_way_ + kMostOfChunk <= kMostRequests) {
      const bool was_idle = num_under_way_ == 0;
      const std::shared_ptr<Chunk> chunk = next();
      if (!chunk) break;
      if (was_idle) began = std::chrono::steady_clock::now();
      begin(chunk);
    }
    if (num_under_way_ == 0) return;
    take_completion();
    if (num_under_way_ > 0) continue;
    const std::chrono::duration<double> busy = std::chrono::steady_clock::now() - began;
    const std::lock_guard lock(mutex_);
    traffic_.busy_seconds += busy.count();
  }
}

/// While requests are under way it does not wait for new ones: a completion comes soon, and then they are seen.
std::shared_ptr<FileWorker::Chunk> FileWorker::next() {
  std::unique_lock lock(mutex_);
  if (num_under_way_ == 0) {
    changed_.wait(lock, [&] { return is_ending_ || !reads_.empty() || !writes_.empty(); });
  }
  auto& queue = reads_.empty() ? writes_ : reads_;
  if (queue.empty()) return nullptr;
  auto chunk = std::move(queue.front());
  queue.pop_front();
  return chunk;
}

std::uint64_t FileWorker::place_of(const Chunk& chunk) const {
  return chunk.transfer->block->extent.offset + static_cast<std::uint64_t>(chunk.index) * FileStore::kChunkBytes;
}

void FileWorker::begin(const std::shared_ptr<Chunk>& chunk) {
  const TransferState& transfer = *chunk->transfer;
  ++chunk->num_tries;
  chunk->error = 0;
  if (transfer.writes) {
    chunk->checksum = checksum_of(chunk->memory.first(chunk->num_bytes));
  } else {
    const auto [known, write_error] = [&] {
      const std::lock_guard lock(mutex_);
      return std::pair(transfer.block->chunks[chunk->index], transfer.block->write_error);
    }();
    chunk->checksum = known.checksum;
    if (known.is == ChunkSum::Is::kZero) {
      std::memset(chunk->memory.data(), 0, chunk->num_bytes);
      return finish(*chunk, "");
    }
    if (known.is == ChunkSum::Is::kLost) return finish(*chunk, write_error);
  }
  std::uint64_t offset = place_of(*chunk);
  std::vector<std::unique_ptr<Request>> requests;
  for (std::span<std::byte> rest = chunk->memory; !rest.empty();) {
    const SwapFiles::Place place = files_.place_of(offset, rest.size());
    requests.push_back(std::make_unique<Request>(Request{chunk, place, rest.first(place.num_bytes)}));
    rest = rest.subspan(place.num_bytes);
    offset += place.num_bytes;
  }
  chunk->num_requests = static_cast<int>(requests.size());
  for (auto& request : requests) submit(std::move(request));
}

void FileWorker::submit(std::unique_ptr<Request> request) {
  const int file = files_.descriptor(request->place.file);
  const bool writes = request->chunk->transfer->writes;
  ++num_under_way_;
  if (ring_ && ring_->is_usable()) {
    const int error = writes ? ring_->write(file, request->memory, request->place.offset, request.get())
                             : ring_->read(file, request->memory, request->place.offset, request.get());
    if (error == 0) {
      static_cast<void>(request.release());  // until its completion
      return;
    }
  }
  const auto offset = static_cast<off_t>(request->place.offset);
  const ssize_t result = writes ? pwrite(file, request->memory.data(), request->memory.size(), offset)
                                : pread(file, request->memory.data(), request->memory.size(), offset);
  done_.emplace_back(std::move(request), result < 0 ? -errno : static_cast<int>(result));
}

void FileWorker::take_completion() {
  std::unique_ptr<Request> request;
  int result = 0;
  if (!done_.empty()) {
    request = std::move(done_.front().first);
    result = done_.front().second;
    done_.pop_front();
  } else {
    const auto [owner, found] = ring_->wait();
    request.reset(static_cast<Request*>(owner));
    result = found;
  }
  --num_under_way_;
  complete(std::move(request), result);
}

void FileWorker::complete(std::unique_ptr<Request> request, int result) {
  if (disk::is_for_another_try(result)) return submit(std::move(request));
  const std::shared_ptr<Chunk> chunk = request->chunk;
  const auto num_done = static_cast<std::size_t>(std::max(result, 0));
  if (result > 0 && num_done < request->memory.size()) {
    // In part: the rest again, from the last aligned offset.
    const std::size_t whole = num_done / files_.alignment() * files_.alignment();
    if (whole > 0) {
      request->memory = request->memory.subspan(whole);
      request->place.offset += whole;
      return submit(std::move(request));
    }
  }
  if (num_done < request->memory.size()) {
    chunk->error = result < 0 ? -result : EIO;
    chunk->failed_file = request->place.file;
  }
  if (--chunk->num_requests == 0) end(chunk);
}

bool FileWorker::holds_what_was_written(const Chunk& chunk) const {
  return checksum_of(chunk.memory.first(chunk.num_bytes)) == chunk.checksum;
}

void FileWorker::end(const std::shared_ptr<Chunk>& chunk) {
  const bool writes = chunk->transfer->writes;
  const bool failed = chunk->error != 0;
  const bool is_good = !failed && (writes || holds_what_was_written(*chunk));
  const bool is_repeated = !is_good && chunk->num_tries < kMostTries;
  {
    const std::lock_guard lock(mutex_);
    if (is_good) (writes ? traffic_.bytes_written : traffic_.bytes_read) += chunk->memory.size();
    if (is_repeated) ++traffic_.num_repeated;
  }
  if (is_good) return finish(*chunk, "");
  if (is_repeated) return begin(chunk);
  finish(*chunk, fault_of(*chunk, /*is_damaged=*/!failed));
}

std::string FileWorker::fault_of(const Chunk& chunk, bool is_damaged) const {
  const TransferState& transfer = *chunk.transfer;
  const SwapFiles::Place place = files_.place_of(place_of(chunk), chunk.num_bytes);
  const std::string where = "(its swap file, bytes " + std::to_string(place.offset) + " to " +
                            std::to_string(place.offset + chunk.num_bytes) + ", " + transfer.block->what + ")";
  if (!is_damaged) {
    const std::string what = (transfer.writes ? "cannot be written " : "cannot be read ") + where;
    return disk::disk_error(files_.folder(chunk.failed_file), what, chunk.error, 0, "offload less").what();
  }
  return files_.folder(place.file).string() + " cannot be trusted " + where +
         ": what was read is not what was written. Use another disk, and go on from a checkpoint";
}

void FileWorker::finish(const Chunk& chunk, const std::string& error) {
  TransferState& transfer = *chunk.transfer;
  std::shared_ptr<void> keeper;  // freed when the lock is not held
  {
    const std::lock_guard lock(mutex_);
    if (transfer.writes) {
      using Is = ChunkSum::Is;
      transfer.block->chunks[chunk.index] = {error.empty() ? Is::kWritten : Is::kLost, chunk.checksum};
      if (!error.empty()) transfer.block->write_error = error;
    }
    if (transfer.error.empty()) transfer.error = error;
    if (--transfer.num_chunks_left > 0) return;
    transfer.block->under_way.remove(&transfer);
    keeper = std::move(transfer.keeper);
  }
  changed_.notify_all();
}

}  // namespace tessera::offload
