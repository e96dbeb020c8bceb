#include "checkpoint/direct_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera::checkpoints {
namespace {

/// A copy of fewer bytes costs less than a request of its own.
constexpr std::size_t kLeastUncopied = std::size_t{256} << 10;

bool is_for_another_try(int result) { return result == -EINTR || result == -EAGAIN || result == -EBUSY; }

}  // namespace

/// Goes through a stretch in aligned steps.
class DirectWriter::Cursor {
 public:
  Cursor(const WriteStretch& stretch, std::size_t alignment)
      : pieces_(stretch.pieces), alignment_(alignment), offset_(stretch.offset), end_(stretch.end()) {
    if (!pieces_.empty()) rest_ = pieces_.front();
  }

  bool is_done() const { return offset_ == end_; }

  /// The bytes of the next request. They end at a multiple of the alignment.
  void fill(Slot& slot) {
    slot.offset = offset_;
    const bool lies_well = reinterpret_cast<std::uintptr_t>(rest_.data()) % alignment_ == 0;
    if (lies_well && rest_.size() >= kLeastUncopied) {
      slot.bytes = next(std::min(kBufferBytes, rest_.size() / alignment_ * alignment_));
      return;
    }
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, end_ - offset_));
    for (std::size_t done = 0; done < length;) {
      const std::span<const std::byte> bytes = next(std::min(length - done, rest_.size()));
      std::memcpy(slot.buffer + done, bytes.data(), bytes.size());
      done += bytes.size();
    }
    slot.bytes = {slot.buffer, length};
  }

 private:
  /// Requires: `length` is at most what is left of the piece.
  std::span<const std::byte> next(std::size_t length) {
    const std::span<const std::byte> bytes = rest_.first(length);
    rest_ = rest_.subspan(length);
    offset_ += length;
    if (rest_.empty() && ++piece_ < pieces_.size()) rest_ = pieces_[piece_];
    return bytes;
  }

  const std::vector<std::span<const std::byte>>& pieces_;
  std::size_t alignment_;
  std::uint64_t offset_;
  std::uint64_t end_;
  std::size_t piece_ = 0;
  std::span<const std::byte> rest_;  // of the piece
};

std::unique_ptr<DirectWriter> DirectWriter::make(int& error) {
  std::unique_ptr<DirectWriter> writer(new DirectWriter);
  const int result = io_uring_queue_init(kNumBuffers, &writer->ring_, 0);
  if (result < 0) {
    error = -result;
    return nullptr;
  }
  writer->has_ring_ = true;
  void* const memory =
      mmap(nullptr, kNumBuffers * kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    error = errno;
    return nullptr;
  }
  madvise(memory, kNumBuffers * kBufferBytes, MADV_HUGEPAGE);  // the disk is given fewer pages; only a wish
  writer->memory_ = static_cast<std::byte*>(memory);
  for (std::size_t i = 0; i < kNumBuffers; ++i) writer->slots_[i].buffer = writer->memory_ + i * kBufferBytes;
  return writer;
}

DirectWriter::~DirectWriter() {
  if (has_ring_) io_uring_queue_exit(&ring_);
  if (memory_ != nullptr) munmap(memory_, kNumBuffers * kBufferBytes);
}

int DirectWriter::write(int file, const WriteStretch& stretch, std::size_t alignment) {
  file_ = file;
  alignment_ = alignment;
  error_ = 0;
  Cursor cursor(stretch, alignment);
  while (error_ == 0 && !cursor.is_done()) {
    if (Slot* const slot = free_slot()) {
      cursor.fill(*slot);
      submit(*slot);
    } else {
      take_completion();
    }
  }
  // After an error too: the disk still reads from the buffers, and from the caller's memory.
  while (num_under_way_ > 0) take_completion();
  return error_;
}

DirectWriter::Slot* DirectWriter::free_slot() {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.is_under_way; });
  return found == slots_.end() ? nullptr : &*found;
}

void DirectWriter::submit(Slot& slot) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  io_uring_prep_write(entry, file_, slot.bytes.data(), static_cast<unsigned>(slot.bytes.size()), slot.offset);
  io_uring_sqe_set_data(entry, &slot);
  int result = 0;
  do {
    result = io_uring_submit(&ring_);
  } while (is_for_another_try(result));
  if (result < 0) {
    is_usable_ = false;  // the entry stays in the ring
    fail(-result);
    return;
  }
  slot.is_under_way = true;
  ++num_under_way_;
}

void DirectWriter::take_completion() {
  io_uring_cqe* entry = nullptr;
  while (is_for_another_try(io_uring_wait_cqe(&ring_, &entry))) {
  }
  Slot& slot = *static_cast<Slot*>(io_uring_cqe_get_data(entry));
  const int result = entry->res;
  io_uring_cqe_seen(&ring_, entry);
  slot.is_under_way = false;
  --num_under_way_;
  if (result < 0 && !is_for_another_try(result)) return fail(-result);
  const auto num_taken = static_cast<std::size_t>(std::max(result, 0));
  if (num_taken == slot.bytes.size() || error_ != 0) return;
  // Taken in part: once more from the last place where a request may begin. No progress at all is a fault.
  const std::size_t num_done = num_taken / alignment_ * alignment_;
  if (num_done == 0 && result >= 0) return fail(EIO);
  slot.bytes = slot.bytes.subspan(num_done);
  slot.offset += num_done;
  submit(slot);
}

std::unique_ptr<DirectWriter> DirectWriters::take(int& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<DirectWriter> writer = std::move(idle_.back());
      idle_.pop_back();
      return writer;
    }
  }
  return DirectWriter::make(error);
}

void DirectWriters::give_back(std::unique_ptr<DirectWriter> writer) {
  if (!writer->is_usable()) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(writer));
}

}  // namespace tessera::checkpoints
