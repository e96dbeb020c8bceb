#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/intercept/watch.h>

#include <torch/csrc/autograd/function.h>

#include <exception>
#include <memory>
#include <thread>
#include <vector>

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

  void on_use(const intercept::Use& use) override;
  void on_operator(std::string_view operator_name) override;

 private:
  enum class Phase { kBetween, kForward, kBackward };

  DdpState(std::shared_ptr<torch::nn::Module> model, const Communicator& comm, const DdpSettings& settings);
  void hook_parameters();
  void unhook_parameters();
  void hook_parameters_that_moved();
  /// Whether the parameters that are trained are those whose gradients are averaged.
  bool trains_the_same() const;
  /// Parameters that were frozen or unfrozen since: their gradients are averaged from now on, or no more. Collective.
  void follow_frozen_parameters();
  void start_watching(ForwardNotice notice);
  void before_synchronised_forward();
  void on_gradient(std::size_t index);
  void start_backward();
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

  struct Hook {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;

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
  DdpStatistics statistics_;
};

}  // namespace tessera::data_parallel
