#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/flight/snapshot.h>

#include <optional>
#include <string>

namespace tessera::comm {

/// What this rank does from construction to destruction, in words that reports about waiting ranks repeat: "Forward of
/// micro-batch 3, stage 0". A trace shows it as a span. Tasks may contain tasks.
/// Thread-safety: one thread at a time for each world.
class [[nodiscard]] Task {
 public:
  Task(const Communicator& comm, const std::string& what);
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

 private:
  Communicator comm_;  // keeps the recorder alive
  std::optional<flight::TaskRecord> outer_;
};

}  // namespace tessera::comm
