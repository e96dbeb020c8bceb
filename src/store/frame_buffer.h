#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::store {

/// Cuts a stream of bytes into frames. Holds what has arrived, never what a length announces.
class FrameBuffer {
 public:
  void append(std::string_view bytes);

  /// The next whole frame, without its length; nothing when more bytes are needed or the stream is broken.
  /// It stays valid until the next call of a member.
  std::optional<std::string_view> next();

  /// Whether a frame announced a length that none may have; nothing can follow it.
  bool broken() const { return broken_; }

 private:
  std::string bytes_;
  std::size_t used_ = 0;
  bool broken_ = false;
};

}  // namespace tessera::store
