#pragma once

#include <tessera/core/descriptor.h>
#include <optional>
#include <vector>

namespace tessera::launch {

/// Those that ask the launcher to end: SIGINT, SIGTERM and SIGHUP, but for what the launcher's own parent set to be
/// ignored, as nohup does.
std::vector<int> ending_signals();

/// Signals as something to poll. They are blocked for this process, and for its children until they unblock them.
class SignalReader {
 public:
  explicit SignalReader(const std::vector<int>& signals);

  int descriptor() const { return descriptor_.get(); }
  /// The next one that came, if any.
  std::optional<int> next() const;

 private:
  Descriptor descriptor_;
};

}  // namespace tessera::launch
