#include "store/frame_buffer.h"

#include <cstdint>

#include "store/protocol.h"

namespace tessera::store {
namespace {

/// A buffer that once held a large value is not kept.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

std::uint32_t length_at(const char* bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

void FrameBuffer::append(std::string_view bytes) {
  if (used_ == bytes_.size()) {
    if (bytes_.capacity() > kKeptBytes) bytes_ = std::string();
    bytes_.clear();
    used_ = 0;
  } else if (used_ > bytes_.size() / 2) {
    // Moving less than was used keeps the cost of a byte constant.
    bytes_.erase(0, used_);
    used_ = 0;
  }
  bytes_.append(bytes);
}

std::optional<std::string_view> FrameBuffer::next() {
  if (broken_ || bytes_.size() - used_ < kLengthBytes) return std::nullopt;
  const std::size_t length = length_at(bytes_.data() + used_);
  if (length > kMaxFrameBytes - kLengthBytes) {
    broken_ = true;
    return std::nullopt;
  }
  if (bytes_.size() - used_ - kLengthBytes < length) return std::nullopt;
  const std::string_view frame(bytes_.data() + used_ + kLengthBytes, length);
  used_ += kLengthBytes + length;
  return frame;
}

}  // namespace tessera::store
