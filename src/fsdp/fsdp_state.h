#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/watch.h>

#include <torch/csrc/autograd/function.h>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/next_units.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// A sharded model on one rank. Hears of every operator that uses a parameter and gathers its unit first, of every
/// gradient, and of the optimizer. See docs/design/interception.md.
/// Thread-safety: of the thread that sharded the model. Other threads find the parameters as they are.
class FsdpState : public std::enable_shared_from_this<FsdpState> {
 public:
  /// Collective: over all ranks.
  static std::shared_ptr<FsdpState> make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                         const FsdpOptions& options);
  ~FsdpState();
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const NamedTensors& replicated() const { return replicated_; }
  const UnitRanks& ranks() const { return ranks_; }
  const FsdpOptions& options() const { return options_; }
  FsdpStatistics statistics() const;

  void enter_no_sync() { ++num_no_sync_; }
  void leave_no_sync() { --num_no_sync_; }
  NamedTensors buffers() const;
  /// Runs `body` with one unit whole. Collective.
  void with_unit(int unit, const std::function<void()>& body);
  /// All units, until let_go(). Collective.
  void hold_all();
  void let_go();

  void on_parameter_use(int unit, std::string_view operator_name);
  void on_parameter_done(int unit);
  void on_shard_use();
  /// Takes the gradient of a parameter on its way to `grad()`.
  void on_gradient(int unit, std::size_t index, const at::Tensor& gradient);

 private:
  enum class Phase { kBetween, kForward, kBackward };
  class UnitListener;
  class ShardListener;

  FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options);
  void make_units();
  void listen();
  void hook_gradients();

  void use(int unit);
  void begin_forward();
  bool reshards(Pass pass) const;
  bool keeps_bytes() const { return options_.strategy() == ShardingStrategy::kZero1; }
  std::size_t num_ahead(Pass pass) const;
  void release_all_but(const std::vector<int>& wanted);
  void release_all();
  void prefetch(const std::vector<int>& units);

  void start_backward();
  void unit_is_complete(int unit);
  void end_backward();
  void reduce_replicated();
  std::string who() const;

  std::shared_ptr<torch::nn::Module> model_;
  UnitRanks ranks_;
  FsdpOptions options_;
  NamedTensors replicated_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::shared_ptr<intercept::Listener>> listeners_;
  std::vector<intercept::Watch> watches_;
  struct Hooked {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
    int unit;
  };
  std::vector<Hooked> hooked_;
  std::optional<BufferPool> rows_;

  std::thread::id thread_;
  Phase phase_ = Phase::kBetween;
  NextUnits order_;
  std::vector<int> wanted_;  // the unit in use and those foretold
  std::vector<int> pins_;    // of each unit: operators under way that use it
  int num_holds_ = 0;
  int num_no_sync_ = 0;
  bool reduces_ = true;        // in this backward
  std::vector<int> expected_;  // of each unit: gradients still to come in this backward
  std::deque<int> reducing_;   // units whose average is under way
  bool busy_ = false;          // in our own operators
  std::exception_ptr kept_error_;
  FsdpStatistics statistics_;
};

}  // namespace tessera::fsdp
