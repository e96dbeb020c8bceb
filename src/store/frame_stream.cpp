#include "store/frame_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

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

namespace {

/// A large value is encrypted piece by piece while it leaves, so that it is not in memory twice.
constexpr std::size_t kEncryptedAtOnce = std::size_t{64} << 10;

}  // namespace

void FrameStream::receive(std::string_view bytes) {
  if (!authenticated_ && !ended_) {
    const std::string_view handshake = bytes.substr(0, kMaxHandshakeBytes - handshake_bytes_);
    bytes.remove_prefix(handshake.size());
    handshake_bytes_ += handshake.size();
    decrypt(handshake);
    if (!authenticated_ && handshake_bytes_ == kMaxHandshakeBytes) end("the handshake is longer than any can be");
  }
  if (!bytes.empty()) decrypt(bytes);
}

void FrameStream::decrypt(std::string_view bytes) {
  if (ended_) return;
  plain_.clear();
  channel_.receive(bytes, plain_);
  authenticated_ = authenticated_ || channel_.state() == Channel::State::kOpen;
  frames_.append(plain_);
  if (channel_.state() == Channel::State::kFailed) end(channel_.failure());
  if (channel_.state() == Channel::State::kClosed) end("the peer closed the connection");
}

std::optional<std::string_view> FrameStream::next_frame() {
  const auto frame = frames_.next();
  if (frames_.broken()) end("the peer announced a frame that is too large");
  return frame;
}

void FrameStream::queue(std::string frame) {
  queued_bytes_ += frame.size();
  queue_.push_back(std::move(frame));
}

std::string_view FrameStream::output() {
  while (channel_.output().empty() && channel_.state() == Channel::State::kOpen && !queue_.empty()) {
    const std::string& front = queue_.front();
    const std::size_t count = std::min(kEncryptedAtOnce, front.size() - front_used_);
    channel_.send(std::string_view(front).substr(front_used_, count));
    if (channel_.state() == Channel::State::kFailed) end(channel_.failure());
    front_used_ += count;
    queued_bytes_ -= count;
    if (front_used_ == front.size()) {
      queue_.pop_front();
      front_used_ = 0;
    }
  }
  return channel_.output();
}

void FrameStream::sent(std::size_t count) { channel_.sent(count); }

void FrameStream::end(std::string reason) {
  if (ended_) return;
  ended_ = true;
  reason_ = std::move(reason);
}

}  // namespace tessera::store
