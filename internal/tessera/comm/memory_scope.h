#pragma once

#include <tessera/comm/communicator.h>

#include <memory>

namespace c10 {
struct Allocator;
}  // namespace c10

namespace tessera {

/// While a scope lives, the CPU tensors that this thread creates lie in the group's memory (`Communicator::empty`). For
/// code of LibTorch that itself allocates the tensors which a group will move. Without effect for groups that have no
/// memory of their own.
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
