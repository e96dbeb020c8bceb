#pragma once

#include <string>

namespace tessera::intercept {

/// While one lives, backward passes that begin on this thread throw ConfigError with this text: for code whose tensors
/// may have no bytes and no history. Scopes nest. Thread-safety: made and ended by one thread.
class NoBackward {
 public:
  explicit NoBackward(std::string why);
  ~NoBackward();
  NoBackward(const NoBackward&) = delete;
  NoBackward& operator=(const NoBackward&) = delete;

 private:
  std::string why_;
  const std::string* outer_;
};

}  // namespace tessera::intercept
