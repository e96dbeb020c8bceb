#include "checkpoint/load/direct_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace tessera::checkpoints {

std::unique_ptr<DirectReader> DirectReader::make(int& error) {
  std::unique_ptr<disk::RequestRing> ring = disk::RequestRing::make(kNumBuffers, kBufferBytes, error);
  return ring ? std::unique_ptr<DirectReader>(new DirectReader(std::move(ring))) : nullptr;
}

DirectReader::DirectReader(std::unique_ptr<disk::RequestRing> ring) : ring_(std::move(ring)) {
  for (std::size_t i = 0; i < kNumBuffers; ++i) slots_[i].buffer = ring_->buffer(i);
}

DirectReader::~DirectReader() { forget_asked(); }

std::span<const std::byte> DirectReader::read(const FileReader& file, std::uint64_t offset, std::size_t num_bytes,
                                              std::uint64_t end) {
  if (num_bytes > kMostBytes || !open(file)) return {};
  if (!is_next(offset, num_bytes)) forget_asked();
  const Slot& last = slots_[(first_asked_ + num_asked_ + kNumBuffers - 1) % kNumBuffers];
  std::uint64_t next = num_asked_ == 0 ? offset : last.offset + last.num_bytes;
  // One buffer takes no request: the block that was returned last stays in it until this call returns.
  while (num_asked_ < kNumBuffers - 1 && next < end) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(num_bytes, end - next));
    if (!ask_for(next, length)) break;
    next += length;
  }
  if (num_asked_ == 0) return {};
  const Slot& slot = slots_[first_asked_];
  while (slot.is_under_way) take_completion();
  first_asked_ = (first_asked_ + 1) % kNumBuffers;
  --num_asked_;
  if (slot.result < 0 || static_cast<std::size_t>(slot.result) < slot.num_before + num_bytes) {
    direct_ = Descriptor();
    return {};
  }
  return {slot.buffer + slot.num_before, num_bytes};
}

bool DirectReader::open(const FileReader& file) {
  if (file_ == &file) return static_cast<bool>(direct_);
  forget_asked();
  file_ = &file;
  direct_ = file.open_again(O_DIRECT);
  if (direct_) alignment_ = disk::direct_alignment(direct_.get());
  return static_cast<bool>(direct_);
}

bool DirectReader::is_next(std::uint64_t offset, std::size_t num_bytes) const {
  const Slot& slot = slots_[first_asked_];
  return num_asked_ > 0 && slot.offset == offset && slot.num_bytes == num_bytes;
}

bool DirectReader::ask_for(std::uint64_t offset, std::size_t num_bytes) {
  Slot& slot = slots_[(first_asked_ + num_asked_) % kNumBuffers];
  const std::uint64_t begin = offset / alignment_ * alignment_;
  const std::uint64_t end = (offset + num_bytes + alignment_ - 1) / alignment_ * alignment_;
  if (ring_->read(direct_.get(), {slot.buffer, static_cast<std::size_t>(end - begin)}, begin, &slot) != 0) return false;
  slot = {slot.buffer, offset, num_bytes, static_cast<std::size_t>(offset - begin), 0, true};
  ++num_asked_;
  return true;
}

void DirectReader::take_completion() {
  const auto [owner, result] = ring_->wait();
  Slot& slot = *static_cast<Slot*>(owner);
  slot.result = result;
  slot.is_under_way = false;
}

void DirectReader::forget_asked() {
  while (ring_->num_under_way() > 0) take_completion();
  num_asked_ = 0;
}

}  // namespace tessera::checkpoints
