#include "fsdp/fsdp_state.h"

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "fsdp/flag.h"
#include "fsdp/memory_recorder.h"
#include "fsdp/rank_rows.h"
#include "fsdp/tree_reduction.h"

namespace tessera::fsdp {
namespace {

/// Views do not read a parameter's bytes.
bool only_looks(std::string_view operator_name) {
  return operator_name == "aten::detach" || operator_name == "detach" || operator_name == "aten::alias";
}

void cast_buffers(const std::vector<at::Tensor>& buffers, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.is_floating_point()) set_memory(buffer, buffer.to(dtype));
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

c10::Device device_of(const ModelPlan& plan) {
  return plan.units.empty() ? c10::Device(c10::kCPU) : plan.units.front().parameters.tensors.front().device();
}

}  // namespace

class FsdpState::UnitListener : public intercept::Listener {
 public:
  UnitListener(std::weak_ptr<FsdpState> state, int unit) : state_(std::move(state)), unit_(unit) {}
  void on_use(const intercept::Use& use) override {
    if (const auto state = state_.lock()) state->on_parameter_use(unit_, use);
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
  void on_use(const intercept::Use& use) override {
    if (const auto state = state_.lock()) state->on_shard_write(use);
  }
  void on_done() override {
    if (const auto state = state_.lock()) state->on_shard_written();
  }

 private:
  std::weak_ptr<FsdpState> state_;
};

class FsdpState::ReplicatedListener : public intercept::Listener {
 public:
  explicit ReplicatedListener(std::weak_ptr<FsdpState> state) : state_(std::move(state)) {}
  void on_use(const intercept::Use& use) override {
    if (const auto state = state_.lock()) state->on_replicated_use(use);
  }

 private:
  std::weak_ptr<FsdpState> state_;
};

// ---- set-up ---------------------------------------------------------------------------------------------------------

std::shared_ptr<FsdpState> FsdpState::make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                           const FsdpOptions& options, Notice notice) {
  std::shared_ptr<FsdpState> state(new FsdpState(std::move(model), ranks, options, notice));
  state->passes_.emplace(state);
  state->make_units();
  state->listen();
  shard::note_shared(state);
  return state;
}

FsdpState::FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options, Notice notice)
    : model_(std::move(model)), ranks_(std::move(ranks)), options_(std::move(options)), notice_(notice) {}

FsdpState::~FsdpState() {
  watches_.clear();
  shard_watch_.reset();
  for (const auto& unit : units_) {
    if (unit->state() == UnitState::kSharded) unit->explain("the ShardedModel of these parameters is gone: keep it");
  }
}

UnitPrecision FsdpState::precision_of(const std::string& unit) const {
  if (options_.unit_precision()) return options_.unit_precision()(unit);
  return {options_.param_dtype(), options_.reduce_dtype(), options_.keep_low_precision_grads()};
}

void FsdpState::make_units() {
  intercept::keep_large_blocks_apart();
  ModelPlan plan = plan_units(*model_, options_);
  replicated_ = std::move(plan.replicated);
  for (const at::Tensor& parameter : replicated_.tensors) trains_replicated_.push_back(parameter.requires_grad());
  std::vector<at::Tensor> whole = buffers().tensors;
  whole.insert(whole.end(), replicated_.tensors.begin(), replicated_.tensors.end());
  for (const at::Tensor& tensor : whole) materialize(tensor);
  cast_buffers(buffers().tensors, options_.buffer_dtype());
  if (options_.init_sync()) {
    broadcast_all(ranks_.shards, whole, 0);
    if (ranks_.replicas) broadcast_all(*ranks_.replicas, whole, 0);
    buffer_sync_.note(buffers().tensors);
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
  const c10::Device device = device_of(plan);
  const RowSourcesSpec rows{ranks_.shards, static_cast<int>(plan.units.size()), one_by_one ? largest : 0, device};
  // Who does not listen to operators does not hear of writes to shards.
  const bool shares = options_.shared_copy() && notice_ != Notice::kCalls;
  sources_ = options_.row_sources() ? options_.row_sources()(rows) : std::make_shared<RankRows>(rows, shares);
  // Averages stay: in pages of their own they are not in the way of what comes and goes.
  gradient_buffers_.emplace(
      GradientBuffers{row_buffers(ranks_.shards, largest_gradient, device), BufferPool(own_pages, 0, device)});
  for (const UnitPlan& unit : plan.units) {
    units_.push_back(std::make_unique<Unit>(unit, static_cast<int>(units_.size()), ranks_, precision_of(unit.name),
                                            *sources_, gate_, *gradient_buffers_, options_.init_sync()));
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
  gradients_->hook(weak_from_this());
  if (options_.reproducible()) {
    guard_ = std::make_shared<RandomGuard>(ranks_.shards.world_rank(), [weak = weak_from_this()](const auto& use) {
      if (const auto state = weak.lock()) state->on_replicated_use(use);
    });
    watches_.emplace_back(replicated_.tensors, guard_, intercept::Interest::kUsesAndEveryOperator);
  }
  std::vector<at::Tensor> shards;
  std::vector<at::Tensor> trained;
  for (const auto& unit : units_) {
    shards.push_back(unit->shard());
    for (const at::Tensor& tensor : unit->trained()) trained.push_back(tensor);
  }
  shard_lock_.emplace(shards);
  listeners_.push_back(std::make_shared<ShardListener>(weak_from_this()));
  shard_watch_.emplace(shards, listeners_.back(), intercept::Interest::kWritesAndEnds);
  if (notice_ == Notice::kCalls) {
    shard_watch_->pause();
    return;
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    listeners_.push_back(std::make_shared<UnitListener>(weak_from_this(), static_cast<int>(i)));
    // The row for all its views; the parameters, should somebody give them other memory.
    std::vector<at::Tensor> watched{units_[i]->storage().row()};
    watched.insert(watched.end(), units_[i]->parameters().begin(), units_[i]->parameters().end());
    watches_.emplace_back(watched, listeners_.back(), intercept::Interest::kUsesAndEnds);
  }
  if (!guard_) {
    listeners_.push_back(std::make_shared<ReplicatedListener>(weak_from_this()));
    watches_.emplace_back(replicated_.tensors, listeners_.back());
  }
  if (ranks_.shards.size() > 1) vector_guard_.emplace(trained, replicated_.tensors.size(), *shard_lock_);
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

void FsdpState::on_parameter_use(int unit, const intercept::Use& use) {
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  if (!is_own_thread()) {
    use_on_other_thread(used, use);
    return;
  }
  gathers_->pin(unit);
  if (busy_ || only_looks(use.operator_name())) return;
  const Flag busy(busy_);
  try {
    raise_kept_errors();
    shard_lock_->allow();
    if (!used.storage().holds(use.tensor())) used.require_unchanged();
    const Pass pass = intercept::present_pass();
    if (pass == Pass::kBackward) {
      passes_->enter_backward();
    } else {
      passes_->find_failure();
    }
    if (const auto recorder = recorder_.lock()) recorder->pass_begins(pass);
    if (pass == Pass::kForward && passes_->phase() == Phase::kBetween) begin_forward();
    // A forward may have begun before it was unfrozen, with a parameter in a log line.
    if (!used.is_trained() && use.tensor().requires_grad()) used.require_unchanged();
    gathers_->use(unit, pass);
    if (use.writes()) used.begin_write();
  } catch (const std::exception& error) {
    // What a callback throws is swallowed: the kernel that is about to run says it instead, and if it asks for no bytes
    // the next one does.
    kept_error_ = std::current_exception();
    num_unwinding_ = std::uncaught_exceptions();
    refused_unit_ = unit;
    // What was written inside gather() is in its memory alone: that stays, and who asks for gradients is told.
    if (!used.is_written() || !used.storage().holds(use.tensor())) used.refuse(error.what());
    raise_at_gradients();
  }
}

void FsdpState::use_on_other_thread(const Unit& unit, const intercept::Use& use) {
  gate_->enter();
  // The thread that trains says it: this one computes with a copy that will be gone.
  if (use.writes() && !unit.is_whole() && !unit.is_written()) was_written_elsewhere_ = true;
}

void FsdpState::on_parameter_done(int unit) {
  if (!is_own_thread()) {
    gate_->leave();
    return;
  }
  gathers_->unpin(unit);
  if (kept_error_ && std::uncaught_exceptions() > num_unwinding_) {
    kept_error_ = nullptr;  // it has been said
    units_[static_cast<std::size_t>(refused_unit_)]->explain_shards();
  }
  if (!units_[static_cast<std::size_t>(unit)]->is_written()) return;
  const Flag busy(busy_);
  try {
    gathers_->carry_writes(unit);
    if (num_wholes_ > 0) seal({unit});
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void FsdpState::on_replicated_use(const intercept::Use& use) {
  if (promise_ && !busy_ && use.writes()) promise_->note_write();
  if (busy_ || kept_error_ || !is_own_thread()) return;
  if (intercept::present_pass() != Pass::kForward || only_looks(use.operator_name())) return;
  // A logger looks at what is detached. A parameter that is frozen is used as it is.
  const bool is_parameter = !use.tensor().requires_grad() &&
                            std::any_of(replicated_.tensors.begin(), replicated_.tensors.end(),
                                        [&](const at::Tensor& parameter) { return parameter.is_same(use.tensor()); });
  if (!use.tensor().requires_grad() && !is_parameter) return;
  const Flag busy(busy_);
  try {
    passes_->find_failure();
    if (passes_->phase() == Phase::kBetween) begin_forward();
    require_replicated_unchanged();
  } catch (...) {
    kept_error_ = std::current_exception();
    raise_at_gradients();
  }
}

void FsdpState::raise_at_gradients() {
  if (!refusals_.empty()) return;
  for (const auto& unit : units_) {
    if (unit->is_trained()) continue;
    for (const at::Tensor& parameter : unit->parameters()) {
      if (!parameter.requires_grad()) continue;
      refusals_.emplace_back(parameter, [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->raise_kept_errors();
      });
    }
  }
}

void FsdpState::require_replicated_unchanged() const {
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    if (trains_replicated_[i] || !replicated_.tensors[i].requires_grad()) continue;
    throw ConfigError(refusal_of_unfrozen(replicated_.names[i], ranks_.shards.world_rank()));
  }
}

void FsdpState::begin_forward() {
  for (const auto& unit : units_) {
    unit->require_unchanged();
    unit->require_unwritten();
  }
  require_replicated_unchanged();
  refusals_.clear();
  gradients_->before_forward();
  passes_->enter_forward();
  if (guard_) guard_->begin();
  if (options_.broadcast_buffers()) take_buffers();
}

void FsdpState::take_buffers(const std::function<bool()>& graphs_live) {
  const auto tensors = buffers().tensors;
  if (ranks_.replicas) buffer_sync_.take(*ranks_.replicas, tensors, 0, graphs_live);
  buffer_sync_.take(ranks_.shards, tensors, 0, graphs_live);
}

void FsdpState::sync_buffers() {
  raise_kept_errors();
  passes_->find_failure();
  if (passes_->phase() != Phase::kBetween) {
    throw ConfigError("sync_buffers() was called between a forward and the end of its backward (rank " +
                      std::to_string(ranks_.shards.world_rank()) +
                      "), which may need the buffers as they are: call it between steps");
  }
  const Flag busy(busy_);
  take_buffers();
}

void FsdpState::enter_no_sync() {
  if (options_.reproducible()) {
    throw ConfigError("reproducible mode adds up the micro-batches of a step itself: leave no_sync() out");
  }
  passes_->enter_no_sync();
}

// ---- gradients ------------------------------------------------------------------------------------------------------

std::shared_ptr<void> FsdpState::on_gradient(const at::Tensor& parameter) {
  struct Dealing {
    Dealing(bool& flag, const std::shared_ptr<MemoryRecorder>& recorder) : busy(flag), counted(recorder) {}
    Flag busy;
    GradientMemory counted;
  };
  if (passes_->is_foreign(parameter)) {
    throw ConfigError("a backward pass of a sharded model runs on another thread than the one that sharded it (rank " +
                      std::to_string(ranks_.shards.world_rank()) +
                      "): its gradients would be mixed with that one's. "
                      "Other threads may evaluate, under NoGradGuard");
  }
  raise_kept_errors();
  if (promise_) promise_->require_open(parameter);
  {
    const Flag busy(busy_);
    passes_->enter_gradients();
  }
  return std::make_shared<Dealing>(busy_, recorder_.lock());
}

void FsdpState::on_unit_complete(int unit) {
  if (notice_ == Notice::kCalls) {
    on_block_gradients(unit);
  } else {
    gathers_->unit_is_complete();
  }
}

void FsdpState::on_replicated_gradient(std::size_t index) {
  raise_kept_errors();
  if (!trains_replicated_[index]) require_replicated_unchanged();
  if (promise_) promise_->require_open(replicated_.tensors[index]);
  const Flag busy(busy_);
  passes_->enter_gradients();
}

void FsdpState::on_backward() {
  // A forward may have begun long ago, with a parameter in a log line.
  for (const auto& unit : units_) unit->require_unchanged();
  require_replicated_unchanged();
  if (const auto recorder = recorder_.lock()) recorder->pass_begins(Pass::kBackward);
  gradients_->start(passes_->averages());
}

void FsdpState::on_backward_end(bool had_gradients) {
  const Flag busy(busy_);
  if (guard_) guard_->end();
  // Without gradients the forward goes on, and its buffers must stay as they are.
  if (had_gradients) end_gradients(passes_->averages());
  gathers_->release_all();
  if (const auto recorder = recorder_.lock(); recorder && had_gradients) recorder->backward_ended(replicated_);
  raise_kept_errors();
}

void FsdpState::end_gradients(bool averages) {
  {
    const GradientMemory counted(recorder_.lock());
    gradients_->finish();
  }
  // Not only before the next forward: a model may compute with a buffer before any parameter tells that one begins.
  if (averages && !passes_->keeps_graph() && options_.broadcast_buffers()) {
    take_buffers([this] { return gradients_->other_graphs_live(); });
  }
}

void FsdpState::on_backward_failure() {
  if (promise_) promise_->note_failure();
  if (guard_) guard_->end();
  gradients_->abandon();
  gathers_->release_all();
}

void FsdpState::raise_kept_errors() {
  if (guard_) guard_->raise();
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
  if (was_written_elsewhere_.exchange(false)) {
    throw ConfigError("a parameter was written to by another thread than the one that sharded the model (rank " +
                      std::to_string(ranks_.shards.world_rank()) +
                      "): that is lost. Write where the model is trained, or inside "
                      "`const auto whole = sharded.gather(GatherOptions().write_back(true));`");
  }
}

}  // namespace tessera::fsdp
