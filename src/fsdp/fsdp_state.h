#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/gradient_notice.h>
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
#include <vector>

#include "fsdp/gather_schedule.h"
#include "fsdp/gradient_reduction.h"
#include "fsdp/random_guard.h"
#include "fsdp/same_path.h"
#include "fsdp/shard_lock.h"
#include "fsdp/unit.h"
#include "fsdp/vector_guard.h"

namespace tessera::fsdp {

class MemoryRecorder;

/// Who tells that parameters are used: the operators that take them, or calls around a block (FullySharded).
enum class Notice { kOperators, kCalls };

/// A sharded model on one rank. Hears of every operator that uses a parameter and gathers its unit first, of every
/// gradient, and of the optimizer. See docs/design/interception.md.
/// Thread-safety: of the thread that sharded the model. Other threads find parameters whole, or get an error.
class FsdpState : public shard::ModelState,
                  public intercept::PassListener,
                  public GradientListener,
                  public std::enable_shared_from_this<FsdpState> {
 public:
  /// Collective: over all ranks.
  static std::shared_ptr<FsdpState> make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                         const FsdpOptions& options, Notice notice);
  ~FsdpState() override;
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;

  const std::shared_ptr<torch::nn::Module>& module() const override { return model_; }
  std::vector<ModelAxis> axes() const override;
  std::vector<TrainedTensor> trained() const override;
  std::vector<StateSlice> state_slices() const override;
  /// Gradients that model->zero_grad() has cleared are gone, and not only to be.
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
  /// As GatherSchedule's, and what is written there though nobody said so is found out. Collective.
  void hold(const GatherOptions& options) override;
  void let_go(const GatherOptions& options) noexcept override;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const NamedTensors& replicated() const { return replicated_; }
  NamedTensors buffers() const;
  /// Throws ConfigError, on every rank, for a model of which these ranks have but a part: `what` asks for all of it.
  void require_uncut(const std::string& what) const;
  const UnitRanks& ranks() const { return ranks_; }
  const FsdpOptions& options() const { return options_; }
  FsdpStatistics statistics() const;
  /// Where gathered parameters, and gradients that are not averaged yet, lie.
  BufferPool& rows() { return sources_->buffers(); }
  GradientBuffers& gradient_buffers() { return *gradient_buffers_; }
  /// Told of what happens, until it is gone.
  void record(const std::weak_ptr<MemoryRecorder>& recorder) { recorder_ = recorder; }

  void set_micro_batch(std::int64_t index) { gradients_->set_micro_batch(index); }
  /// The optimizer was looked at, and works element by element.
  void trust_optimizer();

  void on_backward() override;
  void on_backward_end(bool had_gradients) override;
  void on_backward_failure() override;

  std::shared_ptr<void> on_gradient(const at::Tensor& parameter) override;
  void on_replicated_gradient(std::size_t index) override;
  void on_unit_complete(int unit) override;

  /// For Notice::kCalls: a forward of the block begins or has ended; backward comes to its outputs. Collective.
  void enter_forward();
  void leave_forward();
  void enter_backward();
  /// Blocks of one model take turns: at most one of them has averages under way while another one starts its own.
  void take_turns_with(const std::shared_ptr<FsdpState>& other) { turns_ = other->turns_; }

 private:
  using Phase = intercept::PassTracker::Phase;
  class UnitListener;
  class ShardListener;
  class ReplicatedListener;

  FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options, Notice notice);
  void make_units();
  UnitPrecision precision_of(const std::string& unit) const;
  void count_bytes();
  void listen();
  std::vector<int> all_units() const;
  std::vector<int> units_of(const GatherOptions& options) const;
  void require_uncut(const std::string& what, const std::string& name, const Slice& slice) const;
  void require_uncut_parameters(const std::string& what) const;

  void on_parameter_use(int unit, const intercept::Use& use);
  void on_parameter_done(int unit);
  void use_on_other_thread(const Unit& unit, const intercept::Use& use);
  void on_shard_write(const intercept::Use& use);
  void on_shard_written();
  void require_nothing_held() const;
  /// Throws ConfigError for a parameter that stays whole and was unfrozen: no optimizer of ours has it.
  void require_replicated_unchanged() const;
  /// Of a parameter that stays whole.
  void on_replicated_use(const intercept::Use& use);
  /// Where nothing else may: of parameters that were unfrozen, nobody takes the gradients.
  void raise_at_gradients();
  void on_block_gradients(int unit);
  void leave_backward();
  /// The gradients of a pass, or those that were promised, have come. Collective, if they are averaged.
  void end_gradients(bool averages);
  shard::GradientPromise& promise_for(const char* what);
  void begin_forward();
  void take_buffers(const std::function<bool()>& graphs_live = nullptr);
  void seal(const std::vector<int>& units);
  void watch_shards();
  /// With Notice::kCalls. Throws ConfigError when somebody has written to its parameters.
  void let_go_of_block();
  bool has_gradients() const;
  void require_sealed(const std::vector<int>& units);
  bool is_own_thread() const { return passes_->is_own_thread(); }
  void raise_kept_errors();

  std::shared_ptr<torch::nn::Module> model_;
  UnitRanks ranks_;
  FsdpOptions options_;
  NamedTensors replicated_;
  std::vector<bool> trains_replicated_;  // at first
  std::shared_ptr<RowSources> sources_;
  std::shared_ptr<ThreadGate> gate_ = std::make_shared<ThreadGate>();  // of the rows of all units
  std::optional<GradientBuffers> gradient_buffers_;
  std::vector<std::unique_ptr<Unit>> units_;
  SamePath path_;
  BufferSync buffer_sync_;
  std::optional<GatherSchedule> gathers_;
  std::unique_ptr<GradientReduction> gradients_;
  std::shared_ptr<RandomGuard> guard_;  // in reproducible mode
  std::vector<std::shared_ptr<intercept::Listener>> listeners_;
  std::vector<intercept::GradientNotice> refusals_;  // of a forward that must not be
  std::vector<intercept::Watch> watches_;
  std::optional<intercept::Watch> shard_watch_;
  int num_wholes_ = 0;       // that gather() has given and that live
  bool could_step_ = false;  // before the forward of now
  bool may_step_ = false;    // with Notice::kCalls: from a backward to the next forward
  std::optional<ShardLock> shard_lock_;
  std::optional<VectorGuard> vector_guard_;

  std::optional<intercept::PassTracker> passes_;
  std::optional<shard::GradientPromise> promise_;
  bool busy_ = false;  // in our own operators
  std::exception_ptr kept_error_;
  int num_unwinding_ = 0;  // exceptions, when that was kept
  int refused_unit_ = 0;   // whose kernels say it
  std::atomic<bool> was_written_elsewhere_ = false;
  FsdpStatistics statistics_;
  std::weak_ptr<MemoryRecorder> recorder_;

  // With Notice::kCalls.
  struct Turns {
    std::deque<std::weak_ptr<FsdpState>> open;
  };
  Notice notice_;
  bool kept_ = false;              // whole from a forward to the end of its backward
  bool held_in_backward_ = false;  // backward is in this block, or was
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

/// What FullySharded does with its block. Collective: over `ranks`.
ShardedModel shard_block(const std::shared_ptr<torch::nn::Module>& block, const Ranks& ranks,
                         const FsdpOptions& options);

}  // namespace tessera::fsdp
