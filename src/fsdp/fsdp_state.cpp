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

#include "fsdp/memory_recorder.h"
#include "fsdp/rank_sources.h"
#include "fsdp/tree_reduction.h"

namespace tessera::fsdp {
namespace {

/// Whether the operator writes values that do not depend on gradients, as loading does but optimizers do not.
bool overwrites(std::string_view operator_name) {
  return operator_name == "aten::copy_" || operator_name == "aten::fill_" || operator_name == "aten::zero_";
}

/// Whether the operator only makes a view and does not read the parameter's bytes.
bool only_looks(std::string_view operator_name) {
  return operator_name == "aten::detach" || operator_name == "detach" || operator_name == "aten::alias";
}

/// A logger, and torch::save() of a model on a device, use detached tensors, which begin no forward: one rank may do so
/// alone. A frozen parameter requires no gradient either, but begins one.
bool computes(const intercept::Use& use, const std::vector<at::Tensor>& parameters) {
  return use.tensor().requires_grad() ||
         std::ranges::any_of(parameters, [&](const at::Tensor& one) { return one.is_same(use.tensor()); });
}

}  // namespace

// ---- set-up ---------------------------------------------------------------------------------------------------------

std::shared_ptr<FsdpState> FsdpState::make(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                                           const FsdpOptions& options) {
  std::shared_ptr<FsdpState> state(new FsdpState(std::move(model), ranks, options));
  state->passes_.emplace(state);
  state->listen();
  if (state->parts_.inner()) state->parts_.inner()->set_outer(state);
  shard::note_shared(state);
  return state;
}

FsdpState::FsdpState(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, FsdpOptions options)
    : options_(std::move(options)), parts_(std::move(model), std::move(ranks), options_) {
  if (options_.init_sync()) buffer_sync_.note(parts_.buffers().tensors);
  gathers_.emplace(units(), options_, path_, parts_.sources().num_expected());
  if (options_.reproducible()) {
    gradients_ =
        std::make_unique<TreeReduction>(units(), replicated(), parts_.ranks(), path_, options_.micro_batches());
  } else {
    gradients_ = std::make_unique<GradientReduction>(units(), replicated(), parts_.ranks(), path_);
  }
}

FsdpState::~FsdpState() {
  watches_.clear();
  shard_watch_.reset();
  for (const auto& unit : units()) {
    if (unit->state() == UnitState::kSharded) unit->explain("the ShardedModel of these parameters is gone: keep it");
  }
}

void FsdpState::listen() {
  gradients_->hook(weak_from_this());
  if (parts_.inner()) {
    parts_.inner()->before_part_write([weak = weak_from_this()](const at::Tensor& part) {
      if (const auto state = weak.lock()) state->parts_.begin_write(part);
    });
  }
  if (options_.reproducible()) {
    guard_ = std::make_shared<RandomGuard>(ranks().shards.world_rank(), [weak = weak_from_this()](const auto& use) {
      if (const auto state = weak.lock()) state->on_replicated_use(use);
    });
    watches_.emplace_back(replicated().tensors, guard_, intercept::Interest::kUsesAndEveryOperator);
  }
  std::vector<at::Tensor> shards;
  std::vector<at::Tensor> trained;
  for (const auto& unit : units()) {
    shards.push_back(unit->shard());
    for (const at::Tensor& tensor : unit->trained()) trained.push_back(tensor);
  }
  shard_lock_.emplace(shards);
  listeners_.push_back(intercept::make_listener(
      weak_from_this(), [](FsdpState& state, const intercept::Use& use) { state.on_shard_write(use); },
      [](FsdpState& state) { state.on_shard_written(); }));
  shard_watch_.emplace(shards, listeners_.back(), intercept::Interest::kWritesAndEnds);
  parts_.sources().on_writes(
      [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->begin_own_write();
      },
      [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->after_write();
      });
  for (std::size_t i = 0; i < units().size(); ++i) {
    const int unit = static_cast<int>(i);
    listeners_.push_back(intercept::make_listener(
        weak_from_this(), [unit](FsdpState& state, const intercept::Use& use) { state.on_parameter_use(unit, use); },
        [unit](FsdpState& state) { state.on_parameter_done(unit); }));
    // The flat parameter, for all its views; the parameters, in case they are given other memory.
    std::vector<at::Tensor> watched{units()[i]->storage().flat()};
    watched.insert(watched.end(), units()[i]->parameters().begin(), units()[i]->parameters().end());
    watches_.emplace_back(watched, listeners_.back(), intercept::Interest::kUsesAndEnds);
  }
  if (!guard_) {
    listeners_.push_back(intercept::make_listener(
        weak_from_this(), [](FsdpState& state, const intercept::Use& use) { state.on_replicated_use(use); }));
    watches_.emplace_back(replicated().tensors, listeners_.back());
  }
  if (ranks().shards.size() > 1) vector_guard_.emplace(trained, replicated().tensors.size(), *shard_lock_);
}

FsdpStatistics FsdpState::statistics() const {
  FsdpStatistics statistics = parts_.byte_counts();
  statistics.num_gathers = gathers_->num_gathers();
  statistics.num_reduce_scatters = gradients_->num_reduce_scatters();
  statistics.gathered_bytes = parts_.flat_buffers().lent_bytes();
  statistics.peak_gathered_bytes = parts_.flat_buffers().peak_bytes();
  return statistics;
}

// ---- parameters -----------------------------------------------------------------------------------------------------

void FsdpState::on_parameter_use(int unit, const intercept::Use& use) {
  Unit& used = *units()[static_cast<std::size_t>(unit)];
  used.note_use();
  if (!is_own_thread()) {
    use_on_other_thread(used, use);
    return;
  }
  gathers_->pin(unit);
  if (busy_ || only_looks(use.operator_name())) return;
  const Flag busy(busy_);
  try {
    raise_kept_errors();
    if (!used.storage().holds(use.tensor())) used.require_unchanged();
    const Pass pass = intercept::present_pass();
    if (pass == Pass::kBackward) {
      passes_->enter_backward();
    } else {
      passes_->find_failure();
    }
    if (const auto recorder = recorder_.lock()) recorder->pass_begins(pass);
    const bool begins = pass == Pass::kForward && passes_->phase() == Phase::kBetween;
    if (begins && computes(use, used.parameters())) begin_forward();
    // The forward may have begun before this unit was unfrozen, for example with a parameter in a log line.
    if (!used.is_trained() && use.tensor().requires_grad()) used.require_unchanged();
    gathers_->use(unit, pass);
    if (use.writes()) used.begin_write();
  } catch (const std::exception& error) {
    // LibTorch drops exceptions of a callback. So the kernel that is about to run throws the error instead or, if it
    // reads no bytes, the next one.
    kept_error_.keep(std::current_exception());
    num_unwinding_ = std::uncaught_exceptions();
    refused_unit_ = unit;
    // Values written inside gather() lie only in the gathered memory, so that is kept; then only a gradient throws. The
    // same while parts are whole: what was written to the whole is yet to go there.
    const bool keeps_values = used.is_written() && used.storage().holds(use.tensor());
    const bool has_whole_parts = parts_.inner() && parts_.inner()->is_held();
    if (!keeps_values && !has_whole_parts) used.refuse(error.what());
    raise_at_gradients();
  }
}

void FsdpState::use_on_other_thread(const Unit& unit, const intercept::Use& use) {
  parts_.gate().enter();
  // The thread that trains throws the error: this thread writes to a copy that will be dropped.
  if (use.writes() && !unit.is_whole() && !unit.is_written()) was_written_elsewhere_ = true;
}

void FsdpState::on_parameter_done(int unit) {
  if (!is_own_thread()) {
    parts_.gate().leave();
    return;
  }
  gathers_->unpin(unit);
  if (kept_error_ && std::uncaught_exceptions() > num_unwinding_) {
    kept_error_.drop();  // the kernel has thrown it
    units()[static_cast<std::size_t>(refused_unit_)]->explain_shards();
  }
  if (!units()[static_cast<std::size_t>(unit)]->is_written()) return;
  const Flag busy(busy_);
  try {
    gathers_->carry_writes(unit);
    if (num_wholes_ > 0) seal({unit});
  } catch (...) {
    kept_error_.keep(std::current_exception());
  }
}

void FsdpState::on_replicated_use(const intercept::Use& use) {
  if (promise_ && !busy_ && use.writes()) promise_->note_write();
  if (busy_ || kept_error_ || !is_own_thread()) return;
  if (intercept::present_pass() != Pass::kForward || only_looks(use.operator_name())) return;
  if (!computes(use, replicated().tensors)) return;
  const Flag busy(busy_);
  try {
    passes_->find_failure();
    if (passes_->phase() == Phase::kBetween) begin_forward();
    parts_.require_replicated_unchanged();
  } catch (...) {
    kept_error_.keep(std::current_exception());
    raise_at_gradients();
  }
}

void FsdpState::raise_at_gradients() {
  if (!refusals_.empty()) return;
  for (const auto& unit : units()) {
    if (unit->is_trained()) continue;
    for (const at::Tensor& parameter : unit->parameters()) {
      if (!parameter.requires_grad()) continue;
      refusals_.emplace_back(parameter, [weak = weak_from_this()] {
        if (const auto state = weak.lock()) state->raise_kept_errors();
      });
    }
  }
}

void FsdpState::begin_forward() {
  require_unchanged();
  refusals_.clear();
  gradients_->before_forward();
  passes_->enter_forward();
  if (guard_) guard_->begin();
  if (!options_.broadcast_buffers()) return;
  const auto tensors = parts_.buffers().tensors;
  if (ranks().replicas) buffer_sync_.take_in_forward(*ranks().replicas, tensors, 0);
  buffer_sync_.take_in_forward(ranks().shards, tensors, 0);
}

void FsdpState::take_buffers(const std::function<bool()>& graphs_live) {
  const auto tensors = parts_.buffers().tensors;
  if (ranks().replicas) buffer_sync_.take(*ranks().replicas, tensors, 0, graphs_live);
  buffer_sync_.take(ranks().shards, tensors, 0, graphs_live);
}

void FsdpState::sync_buffers() {
  raise_kept_errors();
  passes_->find_failure();
  if (passes_->phase() != Phase::kBetween) {
    throw ConfigError("sync_buffers() was called between a forward and the end of its backward (rank " +
                      std::to_string(ranks().shards.world_rank()) +
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

// ---- parameters that are held whole, and writes --------------------------------------------------------------------

void FsdpState::hold(const GatherOptions& options) {
  const std::vector<int> units = parts_.units_of(options);
  std::exception_ptr fault;
  try {
    raise_kept_errors();
    for (const int unit : units) parts_.units()[static_cast<std::size_t>(unit)]->require_unchanged();
  } catch (...) {
    fault = std::current_exception();
  }
  if (parts_.inner()) parts_.inner()->refuse_together(fault);
  if (fault) std::rethrow_exception(fault);
  const Flag busy(busy_);
  gathers_->hold(units, options.write_back());
  seal(units);
  ++num_wholes_;
  if (parts_.inner()) parts_.inner()->hold(options);
}

void FsdpState::require_usable() {
  raise_kept_errors();
  require_unchanged();
}

void FsdpState::require_unchanged() const {
  for (const auto& unit : parts_.units()) unit->require_unchanged();
  parts_.require_replicated_unchanged();
}

void FsdpState::let_go(const GatherOptions& options) noexcept {
  const std::vector<int> units = parts_.units_of(options);
  const Flag busy(busy_);
  if (parts_.inner()) parts_.inner()->let_go(options);
  --num_wholes_;
  try {
    require_sealed(units);
  } catch (...) {
    if (!was_written_elsewhere_) kept_error_.keep(std::current_exception());  // else the error names the other thread
  }
  try {
    if (parts_.inner()) gradients_->hook_again(weak_from_this());
    gathers_->let_go(units, options.write_back());
    if (num_wholes_ > 0) seal(units);
  } catch (...) {
    kept_error_.keep(std::current_exception());
  }
}

void FsdpState::seal(const std::vector<int>& units) {
  for (const int unit : units) {
    if (parts_.units()[static_cast<std::size_t>(unit)]->state() == UnitState::kGathered) {
      // Only this rank's part: where ranks share a copy, another rank may be ahead and write its own part.
      parts_.units()[static_cast<std::size_t>(unit)]->seal();
    }
  }
}

void FsdpState::require_sealed(const std::vector<int>& units) {
  for (const int unit : units) parts_.units()[static_cast<std::size_t>(unit)]->require_sealed();
}

void FsdpState::settle_gradients() {
  if (num_wholes_ > 0 && parts_.inner()) parts_.inner()->require_not_held();
  for (const auto& unit : units()) {
    unit->drop_cleared_gradients();
    if (unit->is_trained()) unit->mark_gradients();
  }
}

void FsdpState::trust_optimizer() {
  if (vector_guard_) vector_guard_->trust_optimizer();
}

void FsdpState::require_nothing_held() const {
  const bool is_inner_held = parts_.inner() && parts_.inner()->is_held();  // though a unit's bytes may be there always
  if (!gathers_->is_holding() && !is_inner_held) return;
  throw ConfigError("the parameters are to be written to while they are held whole (rank " +
                    std::to_string(ranks().shards.world_rank()) +
                    "): what gather() returned must be gone, and backward of the last forward done");
}

namespace {

std::string refusal_of_other_thread(int world_rank) {
  return "the shards of this model are to be written to by another thread than the one that sharded it (rank " +
         std::to_string(world_rank) + "): run the optimizer where the model is trained";
}

}  // namespace

void FsdpState::prepare_write(bool uses_gradients) {
  require_nothing_held();
  if (promise_) promise_->refuse_write();
  if (uses_gradients) {
    for (const auto& unit : units()) {
      unit->require_none_cleared();
      unit->require_none_frozen();
    }
  }
  // As a rule the optimizer writes: gathered parameters are out of date.
  gathers_->release_all();
}

void FsdpState::on_shard_write(const intercept::Use& use) {
  if (!is_own_thread()) {
    shard_lock_->refuse(refusal_of_other_thread(ranks().shards.world_rank()));
    return;
  }
  if (busy_) return;
  const Flag busy(busy_);
  try {
    prepare_write(!overwrites(use.operator_name()));
    for (const auto& unit : units()) unit->before_write();
  } catch (const std::exception& error) {
    shard_lock_->refuse(error.what());
  }
}

void FsdpState::begin_own_write() {
  if (!is_own_thread()) throw ConfigError(refusal_of_other_thread(ranks().shards.world_rank()));
  raise_kept_errors();
  const Flag busy(busy_);
  prepare_write(/*uses_gradients=*/true);
}

void FsdpState::on_shard_written() {
  shard_lock_->allow();
  if (is_own_thread() && !busy_) after_write();
}

void FsdpState::before_write() {
  raise_kept_errors();
  require_nothing_held();
  gathers_->release_all();
  for (const auto& unit : units()) unit->before_write();
}

void FsdpState::after_write() {
  for (const auto& unit : units()) unit->after_write();
}

// ---- gradients ------------------------------------------------------------------------------------------------------

std::shared_ptr<void> FsdpState::on_gradient(const at::Tensor& parameter) {
  struct Dealing {
    Dealing(bool& flag, const std::shared_ptr<MemoryRecorder>& recorder) : busy(flag), counted(recorder) {}
    Flag busy;
    GradientMemory counted;
  };
  if (!passes_->is_own_thread()) {
    throw ConfigError("a backward pass of a sharded model runs on another thread than the one that sharded it (rank " +
                      std::to_string(ranks().shards.world_rank()) +
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

void FsdpState::on_unit_complete(int /*unit*/) { gathers_->unit_is_complete(); }

void FsdpState::on_replicated_gradient(std::size_t index) {
  raise_kept_errors();
  if (!parts_.trains_replicated(index)) parts_.require_replicated_unchanged();
  if (promise_) promise_->require_open(replicated().tensors[index]);
  const Flag busy(busy_);
  passes_->enter_gradients();
}

void FsdpState::on_backward() {
  // The forward may have begun before parameters were changed, for example with a parameter in a log line.
  for (const auto& unit : units()) unit->require_unchanged();
  parts_.require_replicated_unchanged();
  if (const auto recorder = recorder_.lock()) recorder->pass_begins(Pass::kBackward);
  gradients_->start(passes_->averages());
}

void FsdpState::on_backward_end(bool had_gradients) {
  const Flag busy(busy_);
  if (guard_) guard_->end();
  // Without gradients of the model the forward is still under way, and its buffers must stay as they are.
  if (had_gradients) end_gradients(passes_->averages());
  gathers_->release_all();
  if (const auto recorder = recorder_.lock(); recorder && had_gradients) recorder->backward_ended(replicated());
  raise_kept_errors();
}

void FsdpState::end_gradients(bool averages) {
  {
    const GradientMemory counted(recorder_.lock());
    gradients_->finish();
  }
  // Not only before the next forward: a model may compute with a buffer before the use of a parameter shows that a
  // forward has begun.
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
  allow_shards();
  if (guard_) guard_->raise();
  kept_error_.raise();
  if (was_written_elsewhere_.exchange(false)) {
    throw ConfigError("a parameter was written to by another thread than the one that sharded the model (rank " +
                      std::to_string(ranks().shards.world_rank()) +
                      "): that is lost. Write where the model is trained, or inside "
                      "`const auto whole = sharded.gather(GatherOptions().write_back(true));`");
  }
}

void FsdpState::promise_gradients() {
  const int rank = ranks().shards.world_rank();
  shard::require_promise_possible(options_.reproducible(), promise_.has_value(), rank);
  raise_kept_errors();
  passes_->find_failure();
  if (intercept::in_backward()) shard::refuse_promise_in_backward("promise_gradients()", rank);
  NamedTensors parameters = replicated();
  std::vector<at::Tensor> trained = replicated().tensors;
  for (const auto& unit : units()) {
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      parameters.names.push_back(unit->layout().items()[i].name);
      parameters.tensors.push_back(unit->parameters()[i]);
    }
    for (const at::Tensor& tensor : unit->trained()) trained.push_back(tensor);
  }
  promise_.emplace(std::move(parameters), std::move(trained), rank);
  passes_->enter_promise();
}

shard::GradientPromise& FsdpState::promise_for(const char* what) {
  raise_kept_errors();
  passes_->find_failure();
  if (intercept::in_backward()) shard::refuse_promise_in_backward(what, ranks().shards.world_rank());
  promise_->require_kept();
  return *promise_;
}

void FsdpState::complete_gradients(const std::vector<at::Tensor>& parameters) {
  shard::GradientPromise& promise = promise_for("complete()");
  promise.complete(parameters);
  const Flag busy(busy_);
  gradients_->average_complete(promise);
}

void FsdpState::finish_gradients() {
  shard::GradientPromise& promise = promise_for("finish()");
  promise.complete_rest();
  const Flag busy(busy_);
  // Inside a backward pass, because only there autograd reports which graphs live.
  intercept::run_backward([&] {
    gradients_->start(/*averages=*/true);
    end_gradients(/*averages=*/true);
  });
  if (const auto recorder = recorder_.lock()) recorder->backward_ended(replicated());
  passes_->leave_promise();
  promise_.reset();
}

void FsdpState::break_promise() noexcept {
  const Flag busy(busy_);
  passes_->leave_promise();
  promise_.reset();
  try {
    gradients_->abandon();
  } catch (const std::exception&) {  // NOLINT: the next call that uses the group reports the failure
  }
  for (const auto& unit : units()) {
    for (const at::Tensor& tensor : unit->trained()) tensor.mutable_grad() = at::Tensor();
  }
  for (const at::Tensor& parameter : replicated().tensors) parameter.mutable_grad() = at::Tensor();
}

}  // namespace tessera::fsdp
