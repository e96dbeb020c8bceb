#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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
  kGradients,    ///< of the shards and of parameters that stay whole, including those not yet averaged
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

class DeviceReports;
class Ledger;

/// Counts the bytes of the tensors that one thread creates, by their use, and notices when they are freed, on whichever
/// thread: those of the CPU, and on request those of devices, with what autograd's threads create for it there.
/// Forward, backward and the optimizer's step run on the thread that calls them; tensors that other threads create
/// (those of a data loader, say) are not counted. If ranks are threads, each counts its own tensors.
/// Requires: one for each thread, made while no MemoryScope is open. Costs a lock and an entry in a table for each
/// tensor.
/// Thread-safety: only the thread that made it may use it; any thread may call `add()` and read the numbers.
class ThreadMemory {
 public:
  /// With a device that is not the CPU, the memory of devices counts too. Throws ConfigError when this thread's memory
  /// is counted already, and for devices while LibTorch's profiler records on this thread.
  explicit ThreadMemory(c10::Device device = c10::kCPU);
  ~ThreadMemory();
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  MemoryBytes live() const;
  /// The most of each kind since the start or the last reset. The peaks need not have been at the same time.
  MemoryBytes peaks() const;
  /// The most of all kinds together.
  std::int64_t peak_of_all() const;
  void reset_peaks();

  /// Counts memory that does not come from LibTorch's allocator; negative when it is freed.
  void add(MemoryKind kind, std::int64_t num_bytes);
  /// The tensor's memory counts as this kind from now on. Does nothing for memory that is not counted here.
  void move(const at::Tensor& tensor, MemoryKind kind);

  /// Marks the activations that are created from now on until stop_marking(), for move_marked().
  void start_marking();
  void stop_marking();
  /// Marked activations that still live count as this kind from now on. Their marks are removed.
  void move_marked(MemoryKind kind);

  /// When an allocation of this thread fails, the StorageError lists the bytes of each kind and says whose they are
  /// (`owner`, "rank 2") and what to do (`advice`).
  void explain_failures(const std::string& owner, const std::string& advice);

  /// Tensors that the thread creates while the scope lives are of this kind.
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
  std::unique_ptr<DeviceReports> reports_;  // of devices
};

/// What the thread allocates on devices while the object lives is counted by add(), and does not count by itself.
class CountedElsewhere {
 public:
  CountedElsewhere();
  ~CountedElsewhere();
  CountedElsewhere(const CountedElsewhere&) = delete;
  CountedElsewhere& operator=(const CountedElsewhere&) = delete;
};

/// The message for a failed allocation of `num_bytes`, with the bytes that this thread holds; "" if nothing is counted.
std::string why_no_memory(std::size_t num_bytes);

}  // namespace intercept
}  // namespace tessera
