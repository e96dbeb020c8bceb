#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/gradient_notice.h>
#include <tessera/intercept/pass_tracker.h>
#include <tessera/intercept/watch.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <tessera/shard/buffer_sync.h>
#include <tessera/shard/gradient_promise.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/named_tensors.h>
#include <tessera/shard/tree_average.h>
#include "data_parallel/ddp_settings.h"
#include "data_parallel/gradient_sync.h"
#include "data_parallel/join.h"
#include "data_parallel/tree_sync.h"

namespace tessera::data_parallel {

/// What signals that a forward begins: the first operator that takes a parameter, or a wrapper around the model.
enum class ForwardNotice { kOperator, kWrapper };

/// A distributed model on one rank: averages the gradients of each backward pass.
/// See docs/design/interception.md.
class DdpState : public intercept::Listener,
                 public intercept::PassListener,
                 public shard::ModelState,
                 public shard::TreeAverage,
                 public std::enable_shared_from_this<DdpState> {
 public:
  /// Collective: over `comm`.
  static std::shared_ptr<DdpState> make(std::shared_ptr<torch::nn::Module> model, const Communicator& comm,
                                        const DdpOptions& options, ForwardNotice notice);
  ~DdpState() override { unhook_parameters(); }

  const std::shared_ptr<torch::nn::Module>& module() const override { return model_; }
  void require_usable() override {
    raise_kept_error();
    if (trains_the_same()) return;
    if (passes_->phase() != Phase::kBetween) refuse_changed_flags();
    require_flags_may_change();
    static_cast<void>(trained_parameters_of(*model_));
  }
  bool has_stages() const override { return inner_ && inner_->has_stages(); }
  std::vector<ModelAxis> axes() const override;
  std::vector<TrainedTensor> trained() const override {
    if (!inner_) return shard::whole_parameters(*model_, 1);
    std::vector<TrainedTensor> found = inner_->trained();
    for (TrainedTensor& one : found) {  // this axis comes first, and every rank along it has the same
      for (std::size_t& axis : one.replicated_over) ++axis;
      one.replicated_over.insert(one.replicated_over.begin(), 0);
    }
    return found;
  }
  std::vector<StateSlice> state_slices() const override {
    return inner_ ? inner_->state_slices() : shard::whole_state(*model_);
  }
  void settle_gradients() override {
    if (inner_) inner_->settle_gradients();
  }
  void hold(const GatherOptions& options) override {
    if (inner_) inner_->hold(options);
  }
  void let_go(const GatherOptions& options) noexcept override {
    if (inner_) inner_->let_go(options);
  }
  void enter_no_sync() override;
  void leave_no_sync() override;
  void promise_gradients() override;
  void complete_gradients(const std::vector<at::Tensor>& parameters) override;
  void finish_gradients() override;
  void average_along_tree() override {
    promise_for("finish()").complete_rest();
    data_parallel::average_along_tree(comm_, parameters_.tensors, settings_.hook->name());
    end_promise();
  }
  void break_promise() noexcept override;
  void sync_buffers() override;

  const NamedTensors& parameters() const { return parameters_; }
  const Communicator& comm() const { return comm_; }
  GradientHook& hook() const { return *settings_.hook; }
  DdpStatistics statistics() const;
  GradientSync& sync() { return *sync_; }

  /// A forward begins. Called by the wrapper, and by on_use(), which keeps its exceptions.
  void begin_forward();
  void take_buffers(int root, const std::function<bool()>& graphs_live = nullptr);

  /// Returns the number of the join.
  int start_join(bool divide_by_initial_size);
  /// Serves the other ranks until none has batches left, then takes the weights of a rank that trained last.
  void finish_join();
  void end_join(int number) noexcept;

  /// Throws ConfigError in the middle of a step, and rethrows the error that an operator's callback had to keep.
  void require_between_steps(const char* what);
  /// The same, but a forward may have begun: for calls that only read.
  void require_no_backward(const char* what);

  void on_use(const intercept::Use& use) override;
  void on_operator(std::string_view operator_name) override;

  void on_backward() override;
  void on_backward_end(bool had_gradients) override;
  void on_backward_failure() override;
  void on_backward_dropped() noexcept override;
  void on_nested_backward() override;

 private:
  using Phase = intercept::PassTracker::Phase;

  DdpState(std::shared_ptr<torch::nn::Module> model, const Communicator& comm, const DdpSettings& settings);
  void hook_parameters(const GradientSync::Buckets& given_buckets = {});
  void unhook_parameters();
  /// gather() has made layers whole that are cut: a rank may evaluate alone, and no backward pass reaches them.
  bool is_whole_for_a_time() const { return inner_ && inner_->is_held(); }
  bool needs_hooks() const;
  /// Makes hooks and reducer anew, if hooks have been lost or a pass has failed.
  void renew_hooks();
  void listen_to_parameters();
  void raise_kept_error();
  void require_flags_may_change() const;
  /// Whether the parameters that are trained are those whose gradients are averaged.
  bool trains_the_same() const;
  /// If parameters were frozen or unfrozen, averages the gradients of those that are trained now. Collective.
  void follow_frozen_parameters();
  void start_watching(ForwardNotice notice);
  void watch_frozen_parameters();
  /// Whether a forward begins with this use, if none is under way.
  bool begins_forward(const intercept::Use& use) const;
  void after_synchronised_backward();
  /// An operator uses a parameter that was frozen when the forward began.
  void on_frozen_use(const intercept::Use& use);
  /// Ends the forward and throws ConfigError. The next forward uses the parameters that are trained then.
  [[noreturn]] void refuse_changed_flags();
  void on_gradient(std::size_t index);
  /// The gradient of a trained parameter has been accumulated. Called even if the hooks of its node were lost.
  void on_arrival(std::size_t index);
  /// The same for a parameter that was frozen when the last forward began.
  void on_frozen_arrival(std::size_t index);
  bool other_graphs_live() const;
  std::vector<bool> parameters_in_this_backward() const;
  void require_all_used(const std::vector<bool>& used) const;
  shard::GradientPromise& promise_for(const char* what);
  void end_promise();
  /// Averages promised gradients that are complete, given as indices into all_parameters_. `is_last` ends the step.
  void average_promised(const std::vector<std::size_t>& indices, bool is_last);
  /// Waits for the averages that are under way and drops them.
  void abandon_averages();

  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<shard::ModelState> inner_;  // what cuts the model along another axis; null: nothing
  Communicator comm_;
  DdpSettings settings_;
  NamedTensors parameters_;  // that are trained
  NamedTensors all_parameters_;
  std::unique_ptr<GradientSync> sync_;
  intercept::Watch watch_;
  std::shared_ptr<intercept::Listener> frozen_listener_;
  std::shared_ptr<intercept::Listener> write_listener_;
  intercept::Watch write_watch_;   // while gradients are promised
  intercept::Watch frozen_watch_;  // from a forward's beginning to the end of its backward

  std::vector<intercept::GradientNode> nodes_;      // of those that are trained
  std::vector<std::size_t> num_own_users_;          // of each node: this object and the reducer
  std::vector<intercept::GradientNotice> notices_;  // of all parameters

  std::optional<intercept::PassTracker> passes_;
  std::optional<shard::GradientPromise> promise_;
  bool is_completing_ = false;     // while promised gradients are averaged
  bool may_lack_;                  // a pass may leave parameters without gradient
  bool took_buffers_ = false;      // in the present forward
  bool is_averaging_ = false;      // from a pass's first gradient, or the first promised one, to the last
  bool must_hook_anew_ = false;    // a pass that averaged has failed
  std::uint64_t num_passes_ = 0;   // since the parameters were hooked
  std::exception_ptr kept_error_;  // of an operator's callback, which must not throw
  JoinState join_;
  BufferSync buffer_sync_;
  DdpStatistics statistics_;
};

}  // namespace tessera::data_parallel
