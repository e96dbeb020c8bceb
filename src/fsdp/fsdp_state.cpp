#include "fsdp/fsdp_state.h"

#include <tessera/core/error.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/in_backward.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "fsdp/memory_recorder.h"
#include "fsdp/tree_reduction.h"

namespace tessera::fsdp {
namespace {

using intercept::in_backward;

/// Views do not read a parameter's bytes.
bool only_looks(std::string_view operator_name) {
  return operator_name == "aten::detach" || operator_name == "detach" || operator_name == "aten::alias";
}

void cast_buffers(const std::vector<at::Tensor>& buffers, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(dtype));
  }
}

/// Of a row in one type, with a gap after each tensor to the next vector.
std::size_t row_bytes(const UnitPlan& unit, c10::ScalarType dtype) {
  std::size_t num_bytes = 0;
  for (const at::Tensor& parameter : unit.parameters.tensors) {
    const auto size = dtype == c10::ScalarType::Undefined ? parameter.element_size()
                                                          : static_cast<std::int64_t>(c10::elementSize(dtype));
    num_bytes += static_cast<std::size_t>(parameter.numel() * size) + 128;
  }
  return num_bytes;
}

struct Flag {
  explicit Flag(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
  ~Flag() { flag_ = before_; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
  bool before_;
};

}  // namespace

class FsdpState::UnitListener : public intercept::Listener {
 public:
  UnitListener(std::weak_ptr<FsdpState> state, int unit) : state_(std::move(state)), unit_(unit) {}
  void on_use(const at::Tensor& tensor, std::string_view operator_name) override {
    if (const auto state = state_.lock()) state->on_parameter_use(unit_, tensor, operator_name);
  }
  void on_done() override {
    if (const auto state = state_.lock()) state->on_parameter_done(unit_);
  }

 private:
  std::weak_ptr<FsdpState> state_;
  int unit_;
};

class FsdpState::OtherListener : public intercept::Listener {
 public:
  using Hears = void (FsdpState::*)(std::string_view operator_name);
  OtherListener(std::weak_ptr<FsdpState> state, Hears hears) : state_(std::move(state)), hears_(hears) {}
  void on_use(const at::Tensor& /*tensor*/, std::string_view operator_name) override {
    if (const auto state = state_.lock()) (*state.*hears_)(operator_name);
  }

 private:
  std::weak_ptr<FsdpState> state_;
  Hears hears_;
};

// ---- set-up ---------------------------------------------------------------------------------------------------------

std::shared_ptr<FsdpState> FsdpState::make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                           const FsdpOptions& options, Notice notice) {
  std::shared_ptr<FsdpState> state(new FsdpState(std::move(model), ranks, options, notice));
  state->make_units();
  state->listen();
  return state;
}

FsdpState::FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options, Notice notice)
    : model_(std::move(model)),
      ranks_(std::move(ranks)),
      options_(std::move(options)),
      thread_(std::this_thread::get_id()),
      notice_(notice) {}

FsdpState::~FsdpState() {
  watches_.clear();
  for (const auto& unit : units_) {
    if (unit->state() == UnitState::kSharded) unit->explain("the ShardedModel of these parameters is gone: keep it");
  }
}

UnitPrecision FsdpState::precision_of(const std::string& unit) const {
  if (options_.unit_precision()) return options_.unit_precision()(unit);
  return {options_.param_dtype(), options_.reduce_dtype(), options_.keep_low_precision_grads()};
}

void FsdpState::make_units() {
  const bool is_mixed = options_.param_dtype() != c10::ScalarType::Undefined || options_.unit_precision();
  // A parameter that stays whole would keep its type, and meet others in an operator that wants one.
  ModelPlan plan = plan_units(*model_, options_.auto_wrap(), is_mixed ? 0 : options_.min_num_params());
  replicated_ = std::move(plan.replicated);
  std::vector<at::Tensor> whole = buffers().tensors;
  whole.insert(whole.end(), replicated_.tensors.begin(), replicated_.tensors.end());
  for (const at::Tensor& tensor : whole) materialize(tensor);
  cast_buffers(buffers().tensors, options_.buffer_dtype());
  if (options_.init_sync()) {
    broadcast_all(ranks_.shards, whole, 0);
    if (ranks_.replicas) broadcast_all(*ranks_.replicas, whole, 0);
  }
  std::size_t largest = 0;
  std::size_t largest_gradient = 0;
  for (const UnitPlan& unit : plan.units) {
    const UnitPrecision precision = precision_of(unit.name);
    const bool differs = precision.reduce_dtype != c10::ScalarType::Undefined;
    largest = std::max(largest, row_bytes(unit, precision.param_dtype));
    largest_gradient =
        std::max(largest_gradient, row_bytes(unit, differs ? precision.reduce_dtype : precision.param_dtype));
  }
  const bool one_by_one =
      options_.strategy() == ShardingStrategy::kFullShard || options_.strategy() == ShardingStrategy::kHybridShard;
  sources_.emplace(ranks_.shards, static_cast<int>(plan.units.size()), one_by_one ? largest : 0,
                   // Who does not listen to operators does not hear of writes to shards.
                   options_.shared_copy() && notice_ != Notice::kCalls);
  gradient_rows_.emplace(ranks_.shards, largest_gradient);
  for (const UnitPlan& unit : plan.units) {
    units_.push_back(std::make_unique<Unit>(unit, static_cast<int>(units_.size()), ranks_, precision_of(unit.name),
                                            *sources_, *gradient_rows_, options_.init_sync()));
    // Note [Slices in reproducible mode]
    // Kernels round the last elements of a tensor, those that fill no vector, differently than the others. A slice of a
    // parameter starts at a whole vector, and ends at one or where the parameter ends, so each element is treated as in
    // the whole parameter. In the row of a unit it would not be.
    if (options_.use_orig_params() || options_.reproducible()) units_.back()->train_slices();
    if (units_.back()->is_trained()) units_.back()->mark_gradients();
  }
  gathers_.emplace(units_, options_, path_);
  if (options_.reproducible()) {
    gradients_ = std::make_unique<TreeReduction>(units_, replicated_, ranks_, path_, options_.micro_batches());
  } else {
    gradients_ = std::make_unique<GradientReduction>(units_, replicated_, ranks_, path_);
  }
  count_bytes();
}

void FsdpState::count_bytes() {
  for (const auto& unit : units_) {
    const auto num_bytes = static_cast<std::uint64_t>(unit->storage().num_bytes());
    statistics_.largest_unit_bytes = std::max(statistics_.largest_unit_bytes, num_bytes);
    statistics_.full_bytes += num_bytes;
    statistics_.shard_bytes += unit->shard().nbytes();
  }
  for (const at::Tensor& parameter : replicated_.tensors) {
    statistics_.full_bytes += parameter.nbytes();
    statistics_.shard_bytes += parameter.nbytes();
  }
}

void FsdpState::listen() {
  gradients_->hook(
      [weak = weak_from_this()](int unit, std::size_t index, const at::Tensor& gradient) {
        if (const auto state = weak.lock()) state->on_gradient(unit, index, gradient);
      },
      [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->on_replicated_gradient();
      });
  if (options_.reproducible()) {
    guard_ = std::make_shared<RandomGuard>(ranks_.shards.world_rank(), [weak = weak_from_this()](auto operator_name) {
      if (const auto state = weak.lock()) state->on_replicated_use(operator_name);
    });
    watches_.emplace_back(replicated_.tensors, guard_, intercept::Interest::kUsesAndEveryOperator);
  }
  if (notice_ == Notice::kCalls) return;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    listeners_.push_back(std::make_shared<UnitListener>(weak_from_this(), static_cast<int>(i)));
    // The row for all its views; the parameters, should somebody give them other memory.
    std::vector<at::Tensor> watched{units_[i]->storage().row()};
    watched.insert(watched.end(), units_[i]->parameters().begin(), units_[i]->parameters().end());
    watches_.emplace_back(watched, listeners_.back(), intercept::Interest::kUsesAndEnds);
  }
  std::vector<at::Tensor> shards;
  for (const auto& unit : units_) shards.push_back(unit->shard());
  listeners_.push_back(std::make_shared<OtherListener>(weak_from_this(), &FsdpState::on_shard_write));
  watches_.emplace_back(shards, listeners_.back(), intercept::Interest::kWrites);
  if (!guard_) {
    listeners_.push_back(std::make_shared<OtherListener>(weak_from_this(), &FsdpState::on_replicated_use));
    watches_.emplace_back(replicated_.tensors, listeners_.back());
  }
  if (ranks_.shards.size() > 1) vector_guard_.emplace(shards);
}

FsdpStatistics FsdpState::statistics() const {
  FsdpStatistics statistics = statistics_;
  statistics.num_gathers = gathers_->num_gathers();
  statistics.num_reduce_scatters = gradients_->num_reduce_scatters();
  statistics.gathered_bytes = sources_->buffers().lent_bytes();
  statistics.peak_gathered_bytes = sources_->buffers().peak_bytes();
  return statistics;
}

NamedTensors FsdpState::buffers() const { return buffers_of(*model_); }

// ---- parameters -----------------------------------------------------------------------------------------------------

void FsdpState::on_parameter_use(int unit, const at::Tensor& tensor, std::string_view operator_name) {
  if (!is_own_thread()) return;
  gathers_->pin(unit);
  if (busy_ || only_looks(operator_name)) return;
  const Flag busy(busy_);
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  try {
    raise_kept_errors();
    if (vector_guard_) vector_guard_->allow();
    if (!used.storage().holds(tensor)) used.require_unchanged();
    const bool trains = at::GradMode::is_enabled();
    const Pass pass = in_backward() ? Pass::kBackward : (trains ? Pass::kForward : Pass::kEvaluation);
    if (pass == Pass::kBackward) {
      enter_pass();
    } else if (pass_has_broken()) {
      leave_broken_pass();
    }
    if (const auto recorder = recorder_.lock()) recorder->pass_begins(pass);
    if (pass == Pass::kForward && phase_ == Phase::kBetween) begin_forward();
    gathers_->use(unit, pass);
  } catch (const std::exception& error) {
    // What a callback throws is swallowed: the kernel that is about to run says it instead.
    kept_error_ = std::current_exception();
    used.refuse(error.what());
  }
}

void FsdpState::on_parameter_done(int unit) {
  if (is_own_thread()) gathers_->unpin(unit);
}

void FsdpState::on_replicated_use(std::string_view operator_name) {
  if (busy_ || kept_error_ || !is_own_thread()) return;
  if (!at::GradMode::is_enabled() || in_backward() || only_looks(operator_name)) return;
  const Flag busy(busy_);
  try {
    if (pass_has_broken()) leave_broken_pass();
    if (phase_ == Phase::kBetween) begin_forward();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void FsdpState::begin_forward() {
  gradients_->before_forward();
  phase_ = Phase::kForward;
  if (guard_) guard_->begin();
  for (const auto& unit : units_) {
    unit->require_unchanged();
    unit->require_unwritten();
  }
  if (!options_.broadcast_buffers()) return;
  const auto tensors = buffers().tensors;
  if (ranks_.replicas) broadcast_all(*ranks_.replicas, tensors, 0);
  broadcast_all(ranks_.shards, tensors, 0);
}

void FsdpState::enter_no_sync() {
  if (options_.reproducible()) {
    throw ConfigError("reproducible mode adds up the micro-batches of a step itself: leave no_sync() out");
  }
  ++num_no_sync_;
}

void FsdpState::hold_all() {
  const Flag busy(busy_);
  gathers_->hold_all();
}

void FsdpState::let_go() {
  const Flag busy(busy_);
  gathers_->let_go();
}

void FsdpState::on_shard_write(std::string_view /*operator_name*/) {
  if (busy_ || kept_error_ || !is_own_thread()) return;
  const Flag busy(busy_);
  // The optimizer, as a rule: what was gathered before is the past.
  gathers_->release_all();
  if (gathers_->is_holding()) return;
  try {
    for (const auto& unit : units_) unit->before_write();
  } catch (const std::exception&) {
    kept_error_ = std::current_exception();
  }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

void FsdpState::on_gradient(int unit, std::size_t index, const at::Tensor& gradient) {
  raise_kept_errors();
  const Flag busy(busy_);
  begin_backward();
  const GradientMemory counted(recorder_.lock());
  if (!gradients_->take(unit, index, gradient)) return;
  if (notice_ == Notice::kCalls) {
    on_block_gradients(unit);
  } else {
    gathers_->unit_is_complete();
  }
}

void FsdpState::on_replicated_gradient() {
  raise_kept_errors();
  const Flag busy(busy_);
  begin_backward();
}

void FsdpState::begin_backward() {
  enter_pass();
  if (phase_ == Phase::kBackward) return;
  phase_ = Phase::kBackward;
  if (const auto recorder = recorder_.lock()) recorder->pass_begins(Pass::kBackward);
  gradients_->start(/*averages=*/num_no_sync_ == 0);
}

/// Note [Where a pass of autograd ends]
/// Autograd calls back at the end of a pass, but not when an exception ends it; and passes may be nested. So the
/// callback holds a token: when that is gone and nobody called, the pass broke off.
void FsdpState::enter_pass() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == pass_) return;
  if (pass_has_broken()) leave_broken_pass();
  // Within another one: the outer pass finds its gradients begun anew.
  if (phase_ == Phase::kBackward) phase_ = Phase::kForward;
  pass_ = pass;
  auto token = std::make_shared<int>(pass);
  token_of_pass_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), token] {
    if (const auto state = weak.lock()) state->leave_pass(*token);
  });
}

void FsdpState::leave_pass(int pass) {
  if (pass != pass_) return;
  const Flag busy(busy_);
  pass_ = kNoPass;
  if (guard_) guard_->end();
  // Passes that only ask for some gradients, as torch::autograd::grad does inside a loss, leave none behind: the
  // forward goes on, and its buffers must stay as they are.
  const auto recorder = recorder_.lock();
  const bool had_gradients = phase_ == Phase::kBackward;
  if (had_gradients) {
    phase_ = Phase::kBetween;
    const GradientMemory counted(recorder);
    gradients_->finish();
  }
  gathers_->release_all();
  if (recorder && had_gradients) recorder->backward_ended(replicated_);
  raise_kept_errors();
}

void FsdpState::leave_broken_pass() {
  pass_ = kNoPass;
  phase_ = Phase::kBetween;
  if (guard_) guard_->end();
  gradients_->abandon();
  gathers_->release_all();
}

void FsdpState::raise_kept_errors() {
  if (guard_) guard_->raise();
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

}  // namespace tessera::fsdp
