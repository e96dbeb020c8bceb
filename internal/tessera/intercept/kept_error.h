#pragma once

#include <exception>
#include <thread>

namespace tessera::intercept {

/// An error of code that must not throw, such as a listener: kept until something on the same thread can throw it.
/// Thread-safety: one thread at a time for each object.
class KeptError {
 public:
  KeptError() = default;
  ~KeptError() { drop(); }
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

  /// Takes the place of an error that is kept already.
  void keep(std::exception_ptr error);
  void drop() noexcept;
  /// Throws the error that is kept, if there is one, and forgets it.
  void raise();
  explicit operator bool() const { return static_cast<bool>(error_); }

 private:
  friend void raise_kept_errors();

  std::exception_ptr error_;
  std::thread::id thread_;
};

/// Throws an error that is kept on this thread, if there is one, and forgets it. For code that is about to wait for
/// other ranks: they may have thrown the same error at an operator that had nothing to read here.
void raise_kept_errors();

}  // namespace tessera::intercept
