#include "offload/store/file_store.h"

#include <memory>
#include <utility>

#include "offload/store/file_worker.h"

namespace tessera::offload {

std::uint64_t FileBlock::num_bytes() const { return state_ ? state_->num_bytes : 0; }

bool Transfer::is_done() const { return !state_ || state_->block->worker->is_done(*state_); }

void Transfer::wait() const {
  if (state_) state_->block->worker->wait(*state_);
}

FileStore::FileStore(std::vector<std::filesystem::path> folders)
    : worker_(std::make_shared<FileWorker>(std::move(folders))) {
  worker_->begin();
}

FileStore::~FileStore() { worker_->end(); }

void FileStore::reserve(std::uint64_t num_bytes) { worker_->reserve(num_bytes); }

FileBlock FileStore::make_block(std::uint64_t num_bytes, std::string what) {
  return FileBlock(worker_->make_block(num_bytes, std::move(what)));
}

Transfer FileStore::read(const FileBlock& block, std::uint64_t offset, std::span<std::byte> into,
                         std::shared_ptr<void> keeper) {
  auto transfer = std::make_shared<TransferState>();
  transfer->block = block.state_;
  transfer->offset = offset;
  transfer->memory = into;
  transfer->keeper = std::move(keeper);
  worker_->start(transfer);
  return Transfer(std::move(transfer));
}

Transfer FileStore::write(const FileBlock& block, std::uint64_t offset, std::span<const std::byte> bytes,
                          std::shared_ptr<void> keeper) {
  auto transfer = std::make_shared<TransferState>();
  transfer->block = block.state_;
  transfer->writes = true;
  transfer->offset = offset;
  transfer->memory = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // which is only read
  transfer->keeper = std::move(keeper);
  worker_->start(transfer);
  return Transfer(std::move(transfer));
}

bool FileStore::is_being_written(const FileBlock& block) const { return worker_->is_being_written(*block.state_); }

std::size_t FileStore::alignment() const { return worker_->files().alignment(); }

FileTraffic FileStore::traffic() const { return worker_->traffic(); }

std::string FileStore::text() const {
  std::string text = worker_->files().is_direct() ? "direct I/O" : "buffered I/O";
  text += worker_->has_ring() ? ", io_uring" : ", synchronous";
  return text;
}

}  // namespace tessera::offload
