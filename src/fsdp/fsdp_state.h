#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/gradient_notice.h>
#include <tessera/intercept/kept_error.h>
#include <tessera/intercept/pass_tracker.h>
#include <tessera/intercept/watch.h>
#include <tessera/shard/buffer_sync.h>
#include <tessera/shard/gradient_promise.h>
#include <tessera/shard/model_state.h>

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/gather_schedule.h"
#include "fsdp/gradient_reduction.h"
#include "fsdp/guards.h"
#include "fsdp/model_parts.h"

namespace tessera::fsdp {

/// Sets a flag as long as it lives.
struct Flag {
  explicit Flag(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
  ~Flag() { flag_ = before_; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
  bool before_;
};

class MemoryRecorder;

/// A sharded model on one rank. Notified of every operator that uses a parameter, and gathers its unit first; also of
/// every gradient, and of the optimizer's writes. See docs/design/interception.md.
/// Thread-safety: used by the thread that sharded the model. Other threads find parameters whole, or get an error.
class FsdpState : public shard::ModelState,
                  public intercept::PassListener,
                  public GradientListener,
                  public std::enable_shared_from_this<FsdpState> {
 public:
  /// Collective: over all ranks.
  static std::shared_ptr<FsdpState> make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                         const FsdpOptions& options);
  ~FsdpState() override;
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;

  const std::shared_ptr<torch::nn::Module>& module() const override { return parts_.model(); }
  std::vector<ModelAxis> axes() const override { return parts_.axes(); }
  std::vector<TrainedTensor> trained() const override { return parts_.trained(); }
  std::vector<StateSlice> state_slices() const override { return parts_.state_slices(); }
  /// Drops the gradients that model->zero_grad() has cleared now, not only at the next backward.
  void settle_gradients() override;
  void before_write() override;
  void after_write() override;
  /// Throws ConfigError in reproducible mode, which adds up micro-batches itself.
  void enter_no_sync() override;
  void leave_no_sync() override { passes_->leave_no_sync(); }
  void promise_gradients() override;
  void complete_gradients(const std::vector<at::Tensor>& parameters) override;
  void finish_gradients() override;
  void break_promise() noexcept override;
  /// Throws ConfigError between a forward and the end of its backward.
  void sync_buffers() override;
  /// As GatherSchedule::hold(); let_go() also detects writes that were not announced by `write_back`. Collective.
  void hold(const GatherOptions& options) override;
  void let_go(const GatherOptions& options) noexcept override;
  void require_usable() override;
  /// Shards that a write was refused of may be used again: who was refused has heard of it.
  void allow_shards() {
    if (shard_lock_) shard_lock_->allow();
  }

  ModelParts& parts() { return parts_; }
  const ModelParts& parts() const { return parts_; }
  const FsdpOptions& options() const { return options_; }
  FsdpStatistics statistics() const;
  /// The recorder is notified of passes, as long as it lives.
  void record(const std::weak_ptr<MemoryRecorder>& recorder) { recorder_ = recorder; }

  void set_micro_batch(std::int64_t index) { gradients_->set_micro_batch(index); }
  /// The optimizer was checked, and works element by element.
  void trust_optimizer();

  void on_backward() override;
  void on_backward_end(bool had_gradients) override;
  void on_backward_failure() override;

  std::shared_ptr<void> on_gradient(const at::Tensor& parameter) override;
  void on_replicated_gradient(std::size_t index) override;
  void on_unit_complete(int unit) override;

 private:
  using Phase = intercept::PassTracker::Phase;

  FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options);
  void listen();
  const UnitRanks& ranks() const { return parts_.ranks(); }
  const std::vector<std::unique_ptr<Unit>>& units() const { return parts_.units(); }
  const NamedTensors& replicated() const { return parts_.replicated(); }

  void on_parameter_use(int unit, const intercept::Use& use);
  void on_parameter_done(int unit);
  void use_on_other_thread(const Unit& unit, const intercept::Use& use);
  void on_shard_write(const intercept::Use& use);
  void on_shard_written();
  /// Shards are about to be written: gathered parameters will be out of date. Throws ConfigError where they may not be.
  void prepare_write(bool uses_gradients);
  void begin_own_write();
  void require_nothing_held() const;
  /// An operator uses a parameter that stays whole.
  void on_replicated_use(const intercept::Use& use);
  /// Throws kept errors when gradients of unfrozen parameters arrive, which no other hook would notice.
  void raise_at_gradients();
  /// The gradients of a pass, or the promised ones, are complete. Collective, if they are averaged.
  void end_gradients(bool averages);
  shard::GradientPromise& promise_for(const char* what);
  void begin_forward();
  void require_unchanged() const;
  void take_buffers(const std::function<bool()>& graphs_live = nullptr);
  void seal(const std::vector<int>& units);
  void require_sealed(const std::vector<int>& units);
  bool is_own_thread() const { return passes_->is_own_thread(); }
  void raise_kept_errors();

  FsdpOptions options_;
  ModelParts parts_;
  SamePath path_;
  BufferSync buffer_sync_;
  std::optional<GatherSchedule> gathers_;
  std::unique_ptr<GradientReduction> gradients_;
  std::shared_ptr<RandomGuard> guard_;  // in reproducible mode
  std::vector<std::shared_ptr<intercept::Listener>> listeners_;
  std::vector<intercept::GradientNotice> refusals_;  // throw the error of a refused forward
  std::vector<intercept::Watch> watches_;
  std::optional<intercept::Watch> shard_watch_;
  int num_wholes_ = 0;  // live results of gather()
  std::optional<ShardLock> shard_lock_;
  std::optional<VectorGuard> vector_guard_;

  std::optional<intercept::PassTracker> passes_;
  std::optional<shard::GradientPromise> promise_;
  bool busy_ = false;  // operators are our own
  intercept::KeptError kept_error_;
  int num_unwinding_ = 0;  // std::uncaught_exceptions() when the error was kept
  int refused_unit_ = 0;   // kernels that read it throw the kept error
  std::atomic<bool> was_written_elsewhere_ = false;
  std::weak_ptr<MemoryRecorder> recorder_;
};

}  // namespace tessera::fsdp
