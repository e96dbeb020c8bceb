#include "fsdp/fsdp_state.h"

#include <tessera/core/error.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace tessera::fsdp {
namespace {

// How many units are gathered ahead without limit_all_gathers.
constexpr std::size_t kFarAhead = 4;
// How many averages are under way at a time: each holds a unit's gradients.
constexpr std::size_t kMaxReducing = 2;

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

/// Takes a gradient before it is accumulated, and leaves nothing to accumulate.
class GradientCatcher : public torch::autograd::FunctionPreHook {
 public:
  GradientCatcher(std::weak_ptr<FsdpState> state, int unit, std::size_t index)
      : state_(std::move(state)), unit_(unit), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    const auto state = state_.lock();
    if (!state || gradients.empty() || !gradients.front().defined()) return gradients;
    state->on_gradient(unit_, index_, gradients.front());
    return {at::Tensor()};
  }

 private:
  std::weak_ptr<FsdpState> state_;
  int unit_;
  std::size_t index_;
};

/// Views do not read a parameter's bytes.
bool only_looks(std::string_view operator_name) {
  return operator_name == "aten::detach" || operator_name == "detach" || operator_name == "aten::alias";
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
  void on_use(const at::Tensor& /*tensor*/, std::string_view operator_name) override {
    if (const auto state = state_.lock()) state->on_parameter_use(unit_, operator_name);
  }
  void on_done() override {
    if (const auto state = state_.lock()) state->on_parameter_done(unit_);
  }

 private:
  std::weak_ptr<FsdpState> state_;
  int unit_;
};

class FsdpState::ShardListener : public intercept::Listener {
 public:
  explicit ShardListener(std::weak_ptr<FsdpState> state) : state_(std::move(state)) {}
  void on_use(const at::Tensor& /*tensor*/, std::string_view /*operator_name*/) override {
    if (const auto state = state_.lock()) state->on_shard_use();
  }

 private:
  std::weak_ptr<FsdpState> state_;
};

// ---- set-up ---------------------------------------------------------------------------------------------------------

std::shared_ptr<FsdpState> FsdpState::make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                           const FsdpOptions& options) {
  std::shared_ptr<FsdpState> state(new FsdpState(std::move(model), ranks, options));
  state->make_units();
  state->hook_gradients();
  state->listen();
  return state;
}

FsdpState::FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options)
    : model_(std::move(model)),
      ranks_(std::move(ranks)),
      options_(std::move(options)),
      thread_(std::this_thread::get_id()) {}

FsdpState::~FsdpState() { watches_.clear(); }

void FsdpState::make_units() {
  ModelPlan plan = plan_units(*model_, options_.auto_wrap(), options_.min_num_params());
  replicated_ = std::move(plan.replicated);
  std::vector<at::Tensor> whole = buffers_of(*model_).tensors;
  whole.insert(whole.end(), replicated_.tensors.begin(), replicated_.tensors.end());
  if (options_.init_sync()) {
    broadcast_all(ranks_.shards, whole, 0);
    if (ranks_.replicas) broadcast_all(*ranks_.replicas, whole, 0);
  }
  std::size_t largest = 0;
  for (const UnitPlan& unit : plan.units) {
    std::size_t num_bytes = 0;
    // Each tensor may be followed by a gap, to the next vector.
    for (const at::Tensor& parameter : unit.parameters.tensors) num_bytes += parameter.nbytes() + 64;
    largest = std::max(largest, num_bytes);
  }
  const bool one_by_one =
      options_.strategy() == ShardingStrategy::kFullShard || options_.strategy() == ShardingStrategy::kHybridShard;
  rows_.emplace(ranks_.shards, one_by_one ? largest : 0);
  const BufferPool gradients(ranks_.shards, largest);
  for (const UnitPlan& unit : plan.units) {
    units_.push_back(std::make_unique<Unit>(unit, ranks_, *rows_, gradients, options_.init_sync()));
    statistics_.largest_unit_bytes =
        std::max<std::uint64_t>(statistics_.largest_unit_bytes, units_.back()->storage().num_bytes());
    if (options_.use_orig_params()) units_.back()->train_slices();
    statistics_.full_bytes += units_.back()->storage().num_bytes();
    statistics_.shard_bytes += units_.back()->shard().nbytes();
  }
  for (const at::Tensor& parameter : replicated_.tensors) {
    statistics_.full_bytes += parameter.nbytes();
    statistics_.shard_bytes += parameter.nbytes();
  }
  pins_.assign(units_.size(), 0);
  expected_.assign(units_.size(), 0);
}

void FsdpState::listen() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    listeners_.push_back(std::make_shared<UnitListener>(weak_from_this(), static_cast<int>(i)));
    watches_.emplace_back(std::vector<at::Tensor>{units_[i]->storage().row()}, listeners_.back(),
                          intercept::Interest::kUsesAndEnds);
  }
  std::vector<at::Tensor> shards;
  for (const auto& unit : units_) shards.push_back(unit->shard());
  listeners_.push_back(std::make_shared<ShardListener>(weak_from_this()));
  watches_.emplace_back(shards, listeners_.back());
}

void FsdpState::hook_gradients() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u]->is_trained()) continue;
    const auto& parameters = units_[u]->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
      accumulator->add_pre_hook(std::make_unique<GradientCatcher>(weak_from_this(), static_cast<int>(u), i));
      hooked_.push_back({std::move(accumulator), static_cast<int>(u)});
    }
  }
}

std::string FsdpState::who() const { return " (rank " + std::to_string(ranks_.shards.world_rank()) + ")"; }

// ---- parameters -----------------------------------------------------------------------------------------------------

void FsdpState::on_parameter_use(int unit, std::string_view operator_name) {
  if (std::this_thread::get_id() != thread_) return;
  ++pins_[unit];
  if (busy_ || kept_error_ || only_looks(operator_name)) return;
  try {
    use(unit);
  } catch (const std::exception& error) {
    // What a callback throws is swallowed: the kernel that is about to run says it instead.
    kept_error_ = std::current_exception();
    units_[unit]->explain(error.what());
  }
}

void FsdpState::on_parameter_done(int unit) {
  if (std::this_thread::get_id() != thread_) return;
  --pins_[unit];
}

void FsdpState::use(int unit) {
  const Flag busy(busy_);
  const Pass pass = in_backward() ? Pass::kBackward : (at::GradMode::is_enabled() ? Pass::kForward : Pass::kEvaluation);
  if (pass == Pass::kForward && phase_ == Phase::kBetween) begin_forward();
  const bool is_new = wanted_.empty() || wanted_.front() != unit;
  if (is_new) {
    order_.used(unit, pass);
    wanted_ = order_.foretell(num_ahead(pass));
    wanted_.insert(wanted_.begin(), unit);
    if (reshards(pass)) release_all_but(wanted_);
  }
  // The unit itself first, then those ahead: they travel while it is waited for and used.
  prefetch(is_new ? wanted_ : std::vector<int>{unit});
  units_[unit]->finish_gather();
}

void FsdpState::begin_forward() {
  phase_ = Phase::kForward;
  for (const auto& unit : units_) unit->require_own_memory();
  if (!options_.broadcast_buffers()) return;
  const auto buffers = buffers_of(*model_).tensors;
  if (ranks_.replicas) broadcast_all(*ranks_.replicas, buffers, 0);
  broadcast_all(ranks_.shards, buffers, 0);
}

bool FsdpState::reshards(Pass pass) const {
  if (num_holds_ > 0) return false;
  const auto strategy = options_.strategy();
  if (strategy == ShardingStrategy::kZero1) return false;
  return pass == Pass::kEvaluation || strategy != ShardingStrategy::kShardGradOp;
}

std::size_t FsdpState::num_ahead(Pass pass) const {
  const std::size_t most = options_.limit_all_gathers() ? 1 : kFarAhead;
  if (pass == Pass::kBackward) return options_.backward_prefetch() == BackwardPrefetch::kPre ? most : 0;
  return options_.forward_prefetch() ? most : 0;
}

void FsdpState::release_all_but(const std::vector<int>& wanted) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), static_cast<int>(i)) != wanted.end();
    if (!is_wanted && pins_[i] == 0) units_[i]->release(keeps_bytes());
  }
}

void FsdpState::release_all() {
  if (num_holds_ > 0) return;
  wanted_.clear();
  release_all_but({});
}

void FsdpState::prefetch(const std::vector<int>& units) {
  for (const int unit : units) {
    if (units_[unit]->state() != UnitState::kSharded) continue;
    ++statistics_.num_gathers;
    units_[unit]->start_gather();
  }
}

NamedTensors FsdpState::buffers() const { return buffers_of(*model_); }

void FsdpState::with_unit(int unit, const std::function<void()>& body) {
  const Flag busy(busy_);
  Unit& whole = *units_[unit];
  const bool was_sharded = whole.state() == UnitState::kSharded;
  whole.start_gather();
  whole.finish_gather();
  body();
  if (was_sharded && num_holds_ == 0) whole.release(keeps_bytes());
}

void FsdpState::hold_all() {
  const Flag busy(busy_);
  ++num_holds_;
  for (const auto& unit : units_) {
    unit->start_gather();
    unit->finish_gather();
  }
}

void FsdpState::let_go() {
  const Flag busy(busy_);
  if (--num_holds_ == 0) release_all();
}

void FsdpState::on_shard_use() {
  // The optimizer, as a rule: what was gathered before is the past.
  if (busy_ || std::this_thread::get_id() != thread_) return;
  const Flag busy(busy_);
  release_all();
}

// ---- gradients ------------------------------------------------------------------------------------------------------

void FsdpState::on_gradient(int unit, std::size_t index, const at::Tensor& gradient) {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
  const Flag busy(busy_);
  if (phase_ != Phase::kBackward) start_backward();
  units_[unit]->take_gradient(index, gradient);
  if (--expected_[unit] == 0) unit_is_complete(unit);
}

void FsdpState::start_backward() {
  phase_ = Phase::kBackward;
  reduces_ = num_no_sync_ == 0;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->end_backward();
  });
  std::fill(expected_.begin(), expected_.end(), 0);
  const auto* in_graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* planned = torch::autograd::get_current_graph_task_exec_info();
  for (const Hooked& hooked : hooked_) {
    auto* const node = hooked.accumulator.get();
    if (in_graph && !in_graph->contains(node)) continue;
    if (planned && !planned->empty()) {
      const auto found = planned->find(node);
      if (found == planned->end() || !found->second.should_execute()) continue;
    }
    ++expected_[hooked.unit];
  }
}

void FsdpState::unit_is_complete(int unit) {
  if (!reduces_) return;
  const auto is_reducing = [&] { return std::find(reducing_.begin(), reducing_.end(), unit) != reducing_.end(); };
  // A unit whose gradients came in two parts is averaged twice, one part after the other.
  for (; is_reducing() || reducing_.size() >= kMaxReducing; reducing_.pop_front()) {
    units_[reducing_.front()]->finish_reduce();
  }
  units_[unit]->start_reduce();
  ++statistics_.num_reduce_scatters;
  reducing_.push_back(unit);
  if (options_.backward_prefetch() == BackwardPrefetch::kPost) {
    prefetch(order_.foretell(options_.limit_all_gathers() ? 1 : kFarAhead));
  }
}

void FsdpState::end_backward() {
  const Flag busy(busy_);
  phase_ = Phase::kBetween;
  if (reduces_) {
    // Gradients that earlier passes left and this one did not complete.
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (units_[i]->has_unreduced_gradients()) unit_is_complete(static_cast<int>(i));
    }
    for (; !reducing_.empty(); reducing_.pop_front()) units_[reducing_.front()]->finish_reduce();
    reduce_replicated();
    for (const auto& unit : units_) {
      if (unit->is_trained()) unit->mark_gradients();
    }
  }
  release_all();
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

void FsdpState::reduce_replicated() {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : replicated_.tensors) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  if (trained.empty()) return;
  // One that no rank used keeps having no gradient: weight decay would act on zeros.
  const at::Tensor used = at::zeros({static_cast<std::int64_t>(trained.size())});
  for (std::size_t i = 0; i < trained.size(); ++i) used[i] = trained[i].grad().defined() ? 1 : 0;
  std::vector<at::Tensor> gradients{used};
  for (const at::Tensor& parameter : trained) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
  }
  average_all(ranks_.shards, gradients);
  if (ranks_.replicas) average_all(*ranks_.replicas, gradients);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (used[i].item<float>() > 0) trained[i].mutable_grad() = gradients[i + 1];
  }
}

FsdpStatistics FsdpState::statistics() const {
  FsdpStatistics statistics = statistics_;
  statistics.gathered_bytes = rows_->lent_bytes();
  statistics.peak_gathered_bytes = rows_->peak_bytes();
  return statistics;
}

}  // namespace tessera::fsdp
