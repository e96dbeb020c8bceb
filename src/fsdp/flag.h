#pragma once

#include <utility>

namespace tessera::fsdp {

/// Sets a flag as long as it lives.
struct Flag {
  explicit Flag(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
  ~Flag() { flag_ = before_; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
  bool before_;
};

}  // namespace tessera::fsdp
