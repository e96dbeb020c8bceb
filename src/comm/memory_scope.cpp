#include <tessera/comm/memory_scope.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

/// The allocator of this thread's tensors; null: the usual one.
thread_local c10::Allocator* chosen = nullptr;

/// LibTorch has one CPU allocator for the process. While any scope lives, it is this one, which forwards to the usual
/// allocator on threads without a scope. It is never destroyed: a tensor made inside a scope keeps a pointer to it.
class ByThread : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    return (chosen ? chosen : usual_.load())->allocate(num_bytes);
  }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    usual_.load()->copy_data(destination, source, num_bytes);
  }

  /// For kernels that take memory without a tensor (oneDNN's do), on threads that are in no scope.
  c10::DeleterFnPtr raw_deleter() const override { return usual_.load()->raw_deleter(); }

  static ByThread& of_process() {
    static auto* const allocator = new ByThread;
    return *allocator;
  }

  void enter() {
    const std::lock_guard lock(mutex_);
    if (num_scopes_++ > 0) return;
    usual_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this);
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    if (--num_scopes_ == 0) c10::SetCPUAllocator(usual_);
  }

 private:
  std::mutex mutex_;
  int num_scopes_ = 0;
  std::atomic<c10::Allocator*> usual_ = c10::GetCPUAllocator();
};

}  // namespace

MemoryScope::MemoryScope(const Communicator& comm) : allocator_(comm.allocator()), outer_(chosen) {
  if (!allocator_) return;
  chosen = allocator_.get();
  ByThread::of_process().enter();
}

MemoryScope::~MemoryScope() {
  if (!allocator_) return;
  chosen = outer_;
  ByThread::of_process().leave();
}

}  // namespace tessera
