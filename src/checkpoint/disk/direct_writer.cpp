#include "checkpoint/disk/direct_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera::checkpoints {

/// Goes through an extent in aligned steps.
class DirectWriter::Cursor {
 public:
  Cursor(const WriteExtent& extent, std::size_t alignment)
      : pieces_(extent.pieces), alignment_(alignment), offset_(extent.offset), end_(extent.end()) {
    if (!pieces_.empty()) rest_ = pieces_.front();
  }

  bool is_done() const { return offset_ == end_; }

  /// The bytes of the next request. They end at a multiple of the alignment.
  void fill(Slot& slot) {
    slot.offset = offset_;
    const bool lies_well = reinterpret_cast<std::uintptr_t>(rest_.data()) % alignment_ == 0;
    if (lies_well && rest_.size() >= kLeastDirect) {
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
  std::unique_ptr<disk::RequestRing> ring = disk::RequestRing::make(kNumBuffers, kBufferBytes, error);
  return ring ? std::unique_ptr<DirectWriter>(new DirectWriter(std::move(ring))) : nullptr;
}

DirectWriter::DirectWriter(std::unique_ptr<disk::RequestRing> ring) : ring_(std::move(ring)) {
  for (std::size_t i = 0; i < kNumBuffers; ++i) slots_[i].buffer = ring_->buffer(i);
}

int DirectWriter::write(int file, const WriteExtent& extent, std::size_t alignment) {
  file_ = file;
  alignment_ = alignment;
  error_ = 0;
  Cursor cursor(extent, alignment);
  while (error_ == 0 && !cursor.is_done()) {
    if (Slot* const slot = free_slot()) {
      cursor.fill(*slot);
      submit(*slot);
    } else {
      take_completion();
    }
  }
  // After an error too: the disk still reads from the buffers, and from the caller's memory.
  while (ring_->num_under_way() > 0) take_completion();
  return error_;
}

DirectWriter::Slot* DirectWriter::free_slot() {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.is_under_way; });
  return found == slots_.end() ? nullptr : &*found;
}

void DirectWriter::submit(Slot& slot) {
  const int error = ring_->write(file_, slot.bytes, slot.offset, &slot);
  if (error != 0) return fail(error);
  slot.is_under_way = true;
}

void DirectWriter::take_completion() {
  const auto [owner, result] = ring_->wait();
  Slot& slot = *static_cast<Slot*>(owner);
  slot.is_under_way = false;
  if (result < 0 && !disk::is_for_another_try(result)) return fail(-result);
  const auto num_taken = static_cast<std::size_t>(std::max(result, 0));
  if (num_taken == slot.bytes.size() || error_ != 0) return;
  // Written in part: submit the rest again, from the last aligned offset. No progress at all is an error.
  const std::size_t num_done = num_taken / alignment_ * alignment_;
  if (num_done == 0 && result >= 0) return fail(EIO);
  slot.bytes = slot.bytes.subspan(num_done);
  slot.offset += num_done;
  submit(slot);
}

}  // namespace tessera::checkpoints
