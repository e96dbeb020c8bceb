#pragma once

// Declarations only: LibTorch's ProcessGroupGloo.hpp includes Gloo's headers, which its packages do not carry. The
// library itself is inside LibTorch. Only what that header names is declared, with the signatures it was built with.
#include <chrono>
#include <memory>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
