#pragma once

#include <tessera/comm/communicator.h>

#include <memory>

namespace c10 {
struct Allocator;
}  // namespace c10

namespace tessera {

/// While one lives, the CPU tensors that this thread creates lie in the group's memory (`Communicator::empty`): for
/// code of LibTorch that allocates by itself what a group will move. Without effect for groups with no memory of their
/// own.
/// Scopes may be nested; the innermost counts. Thread-safety: made and ended by one thread.
class MemoryScope {
 public:
  explicit MemoryScope(const Communicator& comm);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<c10::Allocator> allocator_;
  c10::Allocator* outer_ = nullptr;
};

}  // namespace tessera
