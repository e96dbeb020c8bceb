#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <thread>

namespace tessera::intercept {

/// Note [Threads of a pass]
/// Autograd computes gradients of devices on threads of its own, one for each device, while the program's thread waits
/// in backward(). What a model's owner keeps belongs to the program's thread, and passes that other threads of the
/// program begin are refused; so a gradient must tell which of them it came from. LibTorch carries its thread-local
/// debug information from the caller of a pass to every thread that works on it, callbacks at the end included: there
/// the caller is noted.
class PassCaller {
 public:
  /// Notes this thread, unless it works on a pass already: then the caller of that one stays.
  PassCaller();

 private:
  std::optional<c10::DebugInfoGuard> noted_;
};

}  // namespace tessera::intercept
