#pragma once

#include <utility>

/// A member of an options type with its builder call and its reader, as LibTorch's TORCH_ARG makes them, for modules
/// that do without Torch:
///
///   /// How long a call may take.
///   TESSERA_ARG(std::chrono::milliseconds, timeout) = std::chrono::seconds(30);
#define TESSERA_ARG(T, name)                      \
 public:                                          \
  auto name(T value) -> decltype(*this) {         \
    this->name##_ = std::move(value);             \
    return *this;                                 \
  }                                               \
  const T& name() const { return this->name##_; } \
                                                  \
 private:                                         \
  T name##_
