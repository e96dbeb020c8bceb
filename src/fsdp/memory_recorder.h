#pragma once

#include <tessera/fsdp/fsdp_memory.h>
#include <tessera/intercept/thread_memory.h>
#include <tessera/intercept/watch.h>
#include <tessera/shard/buffer_pool.h>
#include <tessera/shard/named_tensors.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "fsdp/gather_schedule.h"

namespace tessera::fsdp {

class FsdpState;

/// Does the counting of FsdpMemory. FsdpState reports passes to it; a watch on the parameters reports the optimizer.
class MemoryRecorder : public intercept::Listener {
 public:
  /// Begins to count.
  static std::shared_ptr<MemoryRecorder> make(const std::shared_ptr<FsdpState>& state, std::size_t max_phases);
  ~MemoryRecorder() override;
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  void pass_begins(Pass pass);
  void backward_ended(const NamedTensors& replicated);
  /// A use of a shard, or of a parameter that stays whole, after backward or before the first pass.
  void on_use(const intercept::Use& use) override;
  void on_done() override;

  intercept::ThreadMemory& memory() { return memory_; }
  MemoryBytes peaks() const;
  std::int64_t peak_of_all() const;
  std::vector<MemoryPhase> timeline() const;
  std::uint64_t num_phases() const { return num_phases_; }

 private:
  MemoryRecorder(std::shared_ptr<FsdpState> state, std::size_t max_phases);
  void count_parameters();
  void follow(BufferPool& pool, MemoryKind kind);
  void enter(TrainingPhase phase);
  MemoryPhase present() const;
  double seconds() const;

  std::shared_ptr<FsdpState> state_;
  std::size_t max_phases_;
  std::thread::id thread_;
  std::chrono::steady_clock::time_point start_;
  intercept::ThreadMemory memory_;
  intercept::Watch watch_;

  bool had_pass_ = false;
  int num_under_way_ = 0;     // operators on parameters, before the first pass
  bool makes_state_ = false;  // the outermost of them creates optimizer state
  TrainingPhase phase_ = TrainingPhase::kOther;
  double phase_start_ = 0;
  std::deque<MemoryPhase> phases_;  // that are over
  std::uint64_t num_phases_ = 1;
  MemoryBytes peaks_;  // of phases that are over
  std::int64_t peak_of_all_ = 0;
};

/// Tensors that this thread creates while it lives count as gradients.
class GradientMemory {
 public:
  explicit GradientMemory(const std::shared_ptr<MemoryRecorder>& recorder) {
    if (recorder) scope_.emplace(recorder->memory(), MemoryKind::kGradients);
  }

 private:
  std::optional<intercept::ThreadMemory::Scope> scope_;
};

}  // namespace tessera::fsdp
