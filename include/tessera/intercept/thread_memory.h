#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>

namespace tessera {

/// What memory is used for.
enum class MemoryKind {
  kParameters,   ///< this rank's shards, and the parameters that stay whole
  kGathered,     ///< parameters that are whole for the moment
  kGradients,    ///< of the shards, of parameters that stay whole, and those that are not averaged yet
  kOptimizer,    ///< what the optimizer keeps, and what it needs for the moment
  kActivations,  ///< all other tensors
  kSpare,        ///< buffers that are kept for the next parameters or gradients, and hold none
};
inline constexpr std::size_t kNumMemoryKinds = 6;
const char* name_of(MemoryKind kind);

/// Bytes of each kind.
struct MemoryBytes {
  std::array<std::int64_t, kNumMemoryKinds> of_kind{};

  std::int64_t& of(MemoryKind kind) { return of_kind[static_cast<std::size_t>(kind)]; }
  std::int64_t of(MemoryKind kind) const { return of_kind[static_cast<std::size_t>(kind)]; }
  std::int64_t all() const { return std::accumulate(of_kind.begin(), of_kind.end(), std::int64_t{0}); }
};

namespace intercept {

class Ledger;

/// Counts the bytes of the CPU tensors that one thread creates, by what they are for, and sees each of them freed,
/// whichever thread does it. Forward, backward and the optimizer's step run on the thread that calls them; what other
/// threads create (a loader's, say) is theirs. Ranks that are threads each count their own.
/// Requires: one for each thread, made while no MemoryScope is open. Costs a lock and an entry in a table for each
/// tensor.
/// Thread-safety: of the thread that made it; `add()` and the numbers from any thread.
class ThreadMemory {
 public:
  ThreadMemory();
  ~ThreadMemory();
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  MemoryBytes live() const;
  /// The most of each kind, which need not have been at one time, since the start or the last reset.
  MemoryBytes peaks() const;
  /// The most of all kinds together.
  std::int64_t peak_of_all() const;
  void reset_peaks();

  /// Memory that comes from elsewhere than LibTorch's allocator, or goes back there.
  void add(MemoryKind kind, std::int64_t num_bytes);
  /// The tensor's memory counts as this kind from now on. Nothing for memory that is not counted here.
  void move(const at::Tensor& tensor, MemoryKind kind);

  /// Remembers the activations that are created from now on, until stop_marking(), for move_marked().
  void start_marking();
  void stop_marking();
  /// Those that still live count as this kind; later ones are remembered anew.
  void move_marked(MemoryKind kind);

  /// When LibTorch finds no memory for a tensor of this thread, StorageError says what there is of each kind, whose it
  /// is ("rank 2") and what to do.
  void explain_failures(const std::string& owner, const std::string& advice);

  /// What the thread creates while it lives is of this kind.
  class Scope {
   public:
    Scope(ThreadMemory& memory, MemoryKind kind);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<Ledger> ledger_;
    MemoryKind outer_;
  };

 private:
  std::shared_ptr<Ledger> ledger_;
};

/// What the count of this thread says when there are not so many bytes; "" when nobody counts.
std::string why_no_memory(std::size_t num_bytes);

}  // namespace intercept
}  // namespace tessera
