#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "store/channel.h"

namespace tessera::store {

/// Cuts a stream of bytes into frames. Allocates memory for bytes that have arrived, not for an announced length.
class FrameBuffer {
 public:
  void append(std::string_view bytes);

  /// The next whole frame, without its length; nothing when more bytes are needed or the stream is broken.
  /// It stays valid until the next call of a member.
  std::optional<std::string_view> next();

  /// Whether a frame announced a length above the limit; no frame can be read after it.
  bool broken() const { return broken_; }

 private:
  std::string bytes_;
  std::size_t used_ = 0;
  bool broken_ = false;
};

/// Frames over an encrypted channel, still without a socket: the state of one connection, on either side.
/// No bytes of a peer make it throw.
class FrameStream {
 public:
  /// More than any handshake takes.
  static constexpr std::size_t kMaxHandshakeBytes = std::size_t{16} << 10;

  /// Requires: the context outlives the stream.
  explicit FrameStream(const ChannelContext& context) : channel_(context) {}

  /// Whether the peer has proved that it has the secret.
  bool authenticated() const { return authenticated_; }
  /// Whether nothing more can be received: the peer violated the protocol, lacks the secret, or closed the connection.
  bool ended() const { return ended_; }
  /// Why, once it has ended.
  const std::string& reason() const { return reason_; }

  void receive(std::string_view bytes);

  /// The next whole frame, without its length. It stays valid until the next call of a member.
  std::optional<std::string_view> next_frame();

  /// Queues a whole frame, its length included, to be sent.
  void queue(std::string frame);

  /// Bytes to send to the peer now; empty when there are none. Valid until the next call of a member.
  std::string_view output();
  void sent(std::size_t count);
  /// Of frames that were queued and are not encrypted yet.
  std::size_t queued_bytes() const { return queued_bytes_; }

 private:
  void decrypt(std::string_view bytes);
  void end(std::string reason);

  Channel channel_;
  FrameBuffer frames_;
  std::string plain_;
  std::size_t handshake_bytes_ = 0;
  bool authenticated_ = false;
  bool ended_ = false;
  std::string reason_;
  std::deque<std::string> queue_;
  std::size_t front_used_ = 0;
  std::size_t queued_bytes_ = 0;
};

}  // namespace tessera::store
