#include <tessera/disk/request_ring.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::disk {

std::size_t direct_alignment(int file) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  struct stat found{};
  if (fstat(file, &found) != 0 || found.st_blksize <= 0) return page;
  const auto block = std::bit_ceil(static_cast<std::size_t>(found.st_blksize));
  return std::max(page, std::min(block, kMostAlignment));  // network file systems report a transfer size
}

bool is_for_another_try(int result) { return result == -EINTR || result == -EAGAIN || result == -EBUSY; }

std::unique_ptr<RequestRing> RequestRing::make(std::size_t num_buffers, std::size_t buffer_bytes, int& error) {
  std::unique_ptr<RequestRing> ring(new RequestRing);
  const int result = io_uring_queue_init(static_cast<unsigned>(num_buffers), &ring->ring_, 0);
  if (result < 0) {
    error = -result;
    return nullptr;
  }
  ring->has_ring_ = true;
  const std::size_t num_bytes = num_buffers * buffer_bytes;
  if (num_bytes == 0) return ring;
  void* const memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    error = errno;
    return nullptr;
  }
  madvise(memory, num_bytes, MADV_HUGEPAGE);  // so that the disk gets fewer pages; only a hint
  ring->memory_ = static_cast<std::byte*>(memory);
  ring->num_buffers_ = num_buffers;
  ring->buffer_bytes_ = buffer_bytes;
  return ring;
}

RequestRing::~RequestRing() {
  if (has_ring_) io_uring_queue_exit(&ring_);
  if (memory_ != nullptr) munmap(memory_, num_buffers_ * buffer_bytes_);
}

int RequestRing::read(int file, std::span<std::byte> into, std::uint64_t offset, void* owner) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  io_uring_prep_read(entry, file, into.data(), static_cast<unsigned>(into.size()), offset);
  io_uring_sqe_set_data(entry, owner);
  return submit();
}

int RequestRing::write(int file, std::span<const std::byte> bytes, std::uint64_t offset, void* owner) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  io_uring_prep_write(entry, file, bytes.data(), static_cast<unsigned>(bytes.size()), offset);
  io_uring_sqe_set_data(entry, owner);
  return submit();
}

int RequestRing::submit() {
  int result = 0;
  do {
    result = io_uring_submit(&ring_);
  } while (is_for_another_try(result));
  if (result < 0) {
    is_usable_ = false;  // the entry stays in the ring
    return -result;
  }
  ++num_under_way_;
  return 0;
}

RequestRing::Completion RequestRing::wait() {
  io_uring_cqe* entry = nullptr;
  while (is_for_another_try(io_uring_wait_cqe(&ring_, &entry))) {
  }
  const Completion completion{io_uring_cqe_get_data(entry), entry->res};
  io_uring_cqe_seen(&ring_, entry);
  --num_under_way_;
  return completion;
}

}  // namespace tessera::disk
