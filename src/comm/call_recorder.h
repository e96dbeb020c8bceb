#pragma once

#include <tessera/comm/call_log.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

namespace tessera::comm {

/// The last calls of a process, in a ring of fixed size.
/// Thread-safety: all functions.
class CallRecorder {
 public:
  static constexpr std::size_t kCapacity = 256;

  /// Returns a ticket for `end`.
  std::uint64_t begin(const std::string& group, std::uint64_t sequence, const char* operation, const char* dtype,
                      std::int64_t num_bytes, const std::source_location& where);
  void end(std::uint64_t ticket, bool failed);
  /// Oldest first.
  std::vector<CallRecord> recent() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;
  std::array<CallRecord, kCapacity> records_;
};

}  // namespace tessera::comm
