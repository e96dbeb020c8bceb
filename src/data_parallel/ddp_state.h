#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/intercept/gradient_notice.h>
#include <tessera/intercept/watch.h>

#include <torch/csrc/autograd/function.h>

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <tessera/shard/buffer_sync.h>
#include <tessera/shard/named_tensors.h>
#include "data_parallel/ddp_settings.h"
#include "data_parallel/gradient_sync.h"

namespace tessera::data_parallel {

/// Who tells that a forward begins: the first operator that takes a parameter, or a wrapper around the model.
enum class ForwardNotice { kOperator, kWrapper };

/// A distributed model on one rank: knows whether it is in forward, in backward or in neither, and makes the gradients
/// of each backward pass averages. See docs/design/interception.md.
class DdpState : public intercept::Listener, public std::enable_shared_from_this<DdpState> {
 public:
  /// Collective: over `comm`.
  static std::shared_ptr<DdpState> make(std::shared_ptr<torch::nn::Module> model, const Communicator& comm,
                                        const DdpOptions& options, ForwardNotice notice);
  ~DdpState() override;

  const torch::nn::Module& model() const { return *model_; }
  const NamedTensors& parameters() const { return parameters_; }
  const Communicator& comm() const { return comm_; }
  GradientHook& hook() const { return *settings_.hook; }
  DdpStatistics statistics() const;
  GradientSync& sync() { return *sync_; }

  /// A forward begins: the wrapper's form. Throws what goes wrong.
  void begin_forward();
  void enter_no_sync();
  void leave_no_sync();
  void sync_buffers(int root);

  /// Returns the number of the join.
  int start_join(bool divide_by_initial_size);
  /// Serves the others until no rank has batches left, then takes the weights of the one that had them last.
  void finish_join();
  void end_join(int number) noexcept;

  /// Throws ConfigError in the middle of a step, and the error that an operator's callback had to keep.
  void require_between_steps(const char* what);
  /// The same, but a forward may have begun: for what only looks.
  void require_no_backward(const char* what);

  void on_use(const intercept::Use& use) override;
  void on_operator(std::string_view operator_name) override;

 private:
  enum class Phase { kBetween, kForward, kBackward };

  DdpState(std::shared_ptr<torch::nn::Module> model, const Communicator& comm, const DdpSettings& settings);
  void hook_parameters();
  void unhook_parameters();
  bool have_parameters_moved() const;
  void hook_parameters_that_moved();
  void listen_to_parameters();
  void raise_kept_error();
  /// Whether the parameters that are trained are those whose gradients are averaged.
  bool trains_the_same() const;
  /// Parameters that were frozen or unfrozen since: their gradients are averaged from now on, or no more. Collective.
  void follow_frozen_parameters();
  void start_watching(ForwardNotice notice);
  void watch_frozen_parameters();
  /// Whether a forward begins with it, if none is under way.
  bool begins_forward(const intercept::Use& use) const;
  void before_synchronised_forward();
  void after_synchronised_backward();
  /// Of a parameter that was frozen when the forward began.
  void on_frozen_use(const intercept::Use& use);
  void require_pass_complete() const;
  /// The forward is over with it: the next one begins with the parameters that are trained then.
  [[noreturn]] void refuse_changed_flags();
  void on_gradient(std::size_t index);
  void start_backward();
  /// When the gradient of a trained parameter has been added, whatever became of the hooks above.
  void on_arrival(std::size_t index);
  /// The same of a parameter that was frozen when the last forward began.
  void on_frozen_arrival(std::size_t index);
  void end_backward();
  std::vector<bool> parameters_in_this_backward() const;
  void require_all_used(const std::vector<bool>& used) const;
  /// Collective: how many ranks train, and the first of them.
  int count_training_ranks(bool this_one);

  std::shared_ptr<torch::nn::Module> model_;
  Communicator comm_;
  DdpSettings settings_;
  NamedTensors parameters_;  // that are trained
  NamedTensors all_parameters_;
  std::unique_ptr<GradientSync> sync_;
  intercept::Watch watch_;
  class FrozenListener;
  std::shared_ptr<FrozenListener> frozen_listener_;
  intercept::Watch frozen_watch_;  // from a forward's beginning to the end of its backward

  struct Hook {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
  std::vector<intercept::GradientNotice> notices_;  // of all parameters

  std::thread::id thread_;  // that trains: other threads' operators are none of ours
  bool may_lack_;           // a pass may leave parameters without gradient
  Phase phase_ = Phase::kBetween;
  bool seen_forward_ = false;
  bool sync_wanted_ = false;  // of the last forward
  int num_no_sync_ = 0;
  std::uint64_t num_passes_ = 0;   // since the parameters were hooked
  int backward_task_ = -1;         // autograd's number of the pass
  std::exception_ptr kept_error_;  // of an operator's callback, which must not throw
  bool joining_ = false;
  int join_number_ = 0;
  bool divide_by_initial_size_ = true;
  int first_training_rank_ = 0;
  bool keeps_graph_ = false;  // in the last backward: it is gone through again, and needs its buffers
  BufferSync buffer_sync_;
  DdpStatistics statistics_;
};

}  // namespace tessera::data_parallel
