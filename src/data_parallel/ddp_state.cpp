#include "data_parallel/ddp_state.h"

#include <tessera/core/error.h>
#include <tessera/data_parallel/sync_batch_norm.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/random_draws.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include <tessera/shard/refuse_modules.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>
#include "data_parallel/nothing_to_sync.h"
#include "data_parallel/reducer_sync.h"
#include "data_parallel/tree_sync.h"

namespace tessera::data_parallel {
namespace {

/// Lines that must be the same on every rank. A fault is one of them: if one rank finds one, the others must throw too
/// instead of waiting for it.
std::vector<std::string> lines_of(const torch::nn::Module& model, const Communicator& comm, const DdpOptions& options) {
  std::vector<std::string> lines{"nothing to object"};
  try {
    resolve(options, comm);
    trained_parameters_of(model);
    refuse_cut_buffers(model);
    refuse_several_devices(model);
    refuse_renormalising_modules(model);
    if (options.reproducible()) refuse_cut_models(model);
    if (options.reproducible()) refuse_irreproducible_modules(model);
  } catch (const ConfigError& fault) {
    lines.front() = fault.what();
    const std::string who = " (rank " + std::to_string(comm.world_rank()) + ")";
    if (const auto at = lines.front().find(who); at != std::string::npos) lines.front().erase(at, who.size());
    std::replace(lines.front().begin(), lines.front().end(), '\n', ' ');
  }
  for (const auto& field : DdpOptions::fields().fields()) {
    lines.push_back("option " + field.key + " = " + DdpOptions::fields().get_text(options, field.key));
  }
  lines.push_back("hook " + (options.hook() ? options.hook()->name() : "none"));
  const auto tensors = described(here(state_of(model)));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

[[noreturn]] void refuse_within_step(const char* what, const char* why) {
  throw ConfigError(std::string(what) + " must be called between steps, after backward and before the next forward. " +
                    why);
}

}  // namespace

std::shared_ptr<DdpState> DdpState::make(std::shared_ptr<torch::nn::Module> model, const Communicator& comm,
                                         const DdpOptions& options, ForwardNotice notice) {
  if (!model) throw ConfigError("there is no model to distribute: the pointer is null");
  require_same_lines(comm, lines_of(*model, comm, options));
  std::shared_ptr<DdpState> state(new DdpState(std::move(model), comm, resolve(options, comm)));
  intercept::keep_large_blocks_apart();
  state->passes_.emplace(state);
  state->hook_parameters();
  state->listen_to_parameters();
  state->start_watching(notice);
  if (state->inner_) state->inner_->set_outer(state);
  shard::note_shared(state);
  return state;
}

DdpState::DdpState(std::shared_ptr<torch::nn::Module> model, const Communicator& comm, const DdpSettings& settings)
    : model_(std::move(model)),
      inner_(shard::find_shared(*model_)),
      comm_(comm),
      settings_(settings),
      parameters_(trained_parameters_of(*model_)),
      all_parameters_(here(parameters_of(*model_))),
      may_lack_(settings.find_unused_parameters || settings.static_graph || settings.delay_all_reduce) {
  refuse_cut_buffers(*model_);
  refuse_several_devices(*model_);
  refuse_renormalising_modules(*model_);
  if (settings_.reproducible) refuse_cut_models(*model_);
  if (settings_.reproducible) refuse_irreproducible_modules(*model_);
  if (!settings_.init_sync) return;
  broadcast_all(comm_, here(state_of(*model_)).tensors, 0);
  buffer_sync_.note(buffers_of(*model_).tensors);
}

void DdpState::unhook_parameters() {
  sync_.reset();
  nodes_.clear();
}

void DdpState::hook_parameters(const GradientSync::Buckets& given_buckets) {
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    nodes_.emplace_back(parameters_.tensors[i]).after_adding([weak = weak_from_this(), i] {
      if (const auto state = weak.lock()) state->on_gradient(i);
    });
  }
  num_own_users_.assign(nodes_.size(), 1);
  for (std::size_t i = 0; i < nodes_.size(); ++i) num_own_users_[i] -= nodes_[i].num_users();
  if (parameters_.tensors.empty()) {
    sync_ = std::make_unique<NothingToSync>(settings_.bucket_bytes);
  } else if (settings_.reproducible) {
    sync_ = std::make_unique<TreeSync>(parameters_, comm_, settings_);
  } else {
    sync_ = std::make_unique<ReducerSync>(parameters_, comm_, settings_);
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) num_own_users_[i] += nodes_[i].num_users();
  num_passes_ = 0;
  must_hook_anew_ = false;
  if (!given_buckets.empty()) sync_->set_buckets(given_buckets);
}

void DdpState::listen_to_parameters() {
  notices_.clear();
  const auto listen = [this](const at::Tensor& parameter, void (DdpState::*on_notice)(std::size_t), std::size_t index) {
    notices_.emplace_back(parameter, [weak = weak_from_this(), on_notice, index] {
      if (const auto state = weak.lock()) ((*state).*on_notice)(index);
    });
  };
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    listen(parameters_.tensors[i], &DdpState::on_arrival, i);
  }
  for (std::size_t i = 0; i < all_parameters_.tensors.size(); ++i) {
    if (!all_parameters_.tensors[i].requires_grad()) {
      listen(all_parameters_.tensors[i], &DdpState::on_frozen_arrival, i);
    }
  }
  watch_frozen_parameters();
}

void DdpState::watch_frozen_parameters() {
  std::vector<at::Tensor> frozen;
  std::ranges::copy_if(all_parameters_.tensors, std::back_inserter(frozen),
                       [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  frozen_watch_ = {};
  if (frozen.empty()) return;
  if (!frozen_listener_)
    frozen_listener_ = intercept::make_listener(
        weak_from_this(), [](DdpState& state, const intercept::Use& use) { state.on_frozen_use(use); });
  frozen_watch_ = intercept::Watch(frozen, frozen_listener_);
  frozen_watch_.pause();
}

bool DdpState::needs_hooks() const {
  if (is_whole_for_a_time()) return false;
  if (must_hook_anew_) return true;
  // A parameter was given other memory, as torch::load does; autograd then silently drops its hooks.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].is_of(parameters_.tensors[i])) return true;
  }
  return false;
}

void DdpState::renew_hooks() {
  if (!needs_hooks()) return;
  if (promise_ && is_averaging_) {
    throw ConfigError("a parameter was given other memory while its gradients were promised (rank " +
                      std::to_string(comm_.world_rank()) +
                      "), as torch::load, Module::to and set_data() do: averages are under way. Do that between steps");
  }
  const GradientSync::Buckets given = sync_->given_buckets();
  unhook_parameters();
  hook_parameters(given);
}

void DdpState::on_arrival(std::size_t index) {
  if (!passes_->is_own_thread()) {
    throw ConfigError("a backward pass of a distributed model runs on another thread than distribute() (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): its gradients would be mixed with that one's. Other threads may evaluate, under NoGradGuard");
  }
  raise_kept_error();
  // Here, before any hook of the node is called, because the hooks are made anew.
  if (!passes_->is_in_pass()) passes_->find_failure();
  // Buckets are dense, and an average of sparse gradients is nearly dense anyway.
  at::Tensor& gradient = parameters_.tensors[index].mutable_grad();
  if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  if (passes_->is_in_pass() || !needs_hooks()) return;
  if (!trains_the_same()) refuse_changed_flags();
  // The parameter got other memory after the forward began. Module::to does that: casting a parameter computes with it,
  // which looks like a forward. In that case the actual forward came later and used the present nodes.
  renew_hooks();
  if (nodes_[index].will_run()) return;
  throw ConfigError("the parameter " + parameters_.names[index] +
                    " was given other memory between a forward and its backward (rank " +
                    std::to_string(comm_.world_rank()) +
                    "), as torch::load, Module::to and set_data() do: its gradient would not be averaged. Do that "
                    "between steps, and run the forward again");
}

void DdpState::on_frozen_arrival(std::size_t index) {
  raise_kept_error();
  if (passes_->phase() != Phase::kBetween) refuse_changed_flags();
  throw ConfigError("the parameter " + all_parameters_.names[index] +
                    " was unfrozen, and its forward was not seen (rank " + std::to_string(comm_.world_rank()) +
                    "): it ran on another thread than distribute(), or computes with what is trained only inside a "
                    "torch::autograd::Function. Its gradient would not be averaged. Run it on that thread, and compute "
                    "with a trained parameter outside of such a function");
}

void DdpState::raise_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

bool DdpState::trains_the_same() const {
  const auto is_trained = [](const at::Tensor& parameter) { return parameter.requires_grad(); };
  return std::ranges::count_if(all_parameters_.tensors, is_trained) == std::ssize(parameters_.tensors) &&
         std::ranges::all_of(parameters_.tensors, is_trained);
}

void DdpState::require_flags_may_change() const {
  if (!join_.is_active() && !promise_ && !sync_->is_within_step()) return;
  throw refusal_of_flags_changed_within(join_.is_active(), comm_.world_rank());
}

void DdpState::follow_frozen_parameters() {
  if (trains_the_same()) return;
  require_flags_may_change();
  require_same_lines(comm_, described(all_parameters_));
  NamedTensors trained = trained_parameters_of(*model_);  // may throw, before anything has changed
  unhook_parameters();
  parameters_ = std::move(trained);
  // The hook keeps its state by bucket, and the buckets are different now.
  settings_.hook->load_memory({});
  hook_parameters();
  listen_to_parameters();
}

void DdpState::start_watching(ForwardNotice notice) {
  const bool every = settings_.reproducible;
  if (notice == ForwardNotice::kWrapper && !every) return;
  watch_ = intercept::Watch(all_parameters_.tensors, weak_from_this(),
                            every ? intercept::Interest::kUsesAndEveryOperator : intercept::Interest::kUses);
}

// ---- forward --------------------------------------------------------------------------------------------------------

bool DdpState::begins_forward(const intercept::Use& use) const {
  // An optimizer and an evaluation use parameters without building a graph, and a logger uses detached ones. Operators
  // inside backward, such as those of recompute(), are no forward either.
  if (!passes_->is_own_thread() || intercept::present_pass() != intercept::Pass::kForward) return false;
  // The second name is that of the record that detach() makes inside itself.
  if (use.operator_name() == "aten::detach" || use.operator_name() == "detach") return false;
  // A frozen parameter requires no gradient, but begins a forward too: its layer may come first, and should have rank
  // 0's buffers.
  return use.tensor().requires_grad() ||
         std::ranges::any_of(all_parameters_.tensors, [&](const at::Tensor& one) { return one.is_same(use.tensor()); });
}

void DdpState::on_use(const intercept::Use& use) {
  if (kept_error_ || !begins_forward(use)) return;
  try {
    begin_forward();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void DdpState::on_operator(std::string_view operator_name) {
  if (!passes_->is_own_thread() || passes_->phase() == Phase::kBetween || kept_error_) return;
  if (!intercept::draws_random_numbers(operator_name)) return;
  kept_error_ = std::make_exception_ptr(refusal_of_random_operator(operator_name, comm_.world_rank()));
}

void DdpState::begin_forward() {
  if (is_whole_for_a_time()) return;
  passes_->find_failure();
  if (passes_->phase() == Phase::kBetween) {
    follow_frozen_parameters();
    renew_hooks();
    sync_->before_forward();
    took_buffers_ = false;
  } else if (!trains_the_same()) {
    refuse_changed_flags();
  }
  passes_->enter_forward();
  // In a join() buffers are taken after each backward: a rank without batches runs no forward.
  if (settings_.broadcast_buffers && !took_buffers_ && !passes_->only_adds() && !join_.is_active()) {
    took_buffers_ = true;
    buffer_sync_.take_in_forward(comm_, buffers_of(*model_).tensors, 0);
  }
  if (!settings_.reproducible) watch_.pause();
  frozen_watch_.resume();
}

void DdpState::on_frozen_use(const intercept::Use& use) {
  if (kept_error_ || !use.tensor().requires_grad() || !begins_forward(use)) return;
  try {
    refuse_changed_flags();
  } catch (...) {
    kept_error_ = std::current_exception();
  }
}

void DdpState::refuse_changed_flags() {
  passes_->leave_forward();
  frozen_watch_.pause();
  watch_.resume();
  throw ConfigError("parameters were frozen or unfrozen after their forward had begun (rank " +
                    std::to_string(comm_.world_rank()) +
                    "): the gradients of this pass would not all be averaged. A forward begins when a parameter is "
                    "first computed with outside NoGradGuard, in a log line too. Freeze and unfreeze before that");
}

std::vector<ModelAxis> DdpState::axes() const {
  if (!inner_) shard::require_uncut(*model_, "distribute()");
  std::vector<ModelAxis> axes{{comm_, false}};
  if (inner_) std::ranges::copy(inner_->axes(), std::back_inserter(axes));
  return axes;
}

void DdpState::sync_buffers() {
  require_between_steps("sync_buffers");
  take_buffers(0);
}

void DdpState::take_buffers(int root, const std::function<bool()>& graphs_live) {
  buffer_sync_.take(comm_, buffers_of(*model_).tensors, root, graphs_live);
}

bool DdpState::other_graphs_live() const {
  std::vector<const intercept::GradientNode*> nodes;
  for (const intercept::GradientNode& node : nodes_) nodes.push_back(&node);
  return intercept::other_graphs_live(nodes, num_own_users_);
}

void DdpState::enter_no_sync() {
  if (settings_.reproducible) {
    throw ConfigError("reproducible mode adds up the micro-batches of a step itself: leave no_sync() out");
  }
  passes_->enter_no_sync();
}

void DdpState::leave_no_sync() {
  passes_->leave_no_sync();
  watch_.resume();  // the next forward takes buffers, if this one has not
}

// ---- backward -------------------------------------------------------------------------------------------------------

void DdpState::on_gradient(std::size_t index) {
  if (promise_) promise_->require_open(parameters_.tensors[index]);
  passes_->enter_gradients();
  // Promised gradients are complete when the program says so.
  if (!promise_) sync_->gradient_came(index, passes_->averages());
}

void DdpState::on_nested_backward() {
  throw ConfigError("a backward pass began inside another one (rank " + std::to_string(comm_.world_rank()) +
                    "): that cannot be averaged. To recompute activations use tessera::recompute(), which needs no "
                    "second pass");
}

void DdpState::on_backward() {
  if (!trains_the_same()) refuse_changed_flags();
  const bool is_first = num_passes_ == 0;
  if (is_first && !passes_->averages() && settings_.static_graph) {
    throw ConfigError("with static_graph(true) the first backward pass teaches the graph (rank " +
                      std::to_string(comm_.world_rank()) + "): run it outside no_sync()");
  }
  ++num_passes_;
  if (!passes_->averages()) return;
  const auto used = parameters_in_this_backward();
  if (!may_lack_) require_all_used(used);
  is_averaging_ = true;
  if (join_.is_active()) {
    sync_->set_divisor(join_.divisor(comm_, join_.count_training_ranks(comm_, true)));
  }
  sync_->backward_starts(used, is_first);
}

void DdpState::on_backward_end(bool had_gradients) {
  if (!had_gradients) return;
  frozen_watch_.pause();
  watch_.resume();
  raise_kept_error();
  ++(passes_->averages() ? statistics_.num_synchronised : statistics_.num_unsynchronised);
  if (!passes_->averages()) return;
  sync_->backward_ends();
  // Queued after the callback with which the reducer finishes its buckets.
  intercept::at_end_of_backward([weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->after_synchronised_backward();
  });
}

void DdpState::on_backward_dropped() noexcept {
  frozen_watch_.pause();
  watch_.resume();
  if (!is_averaging_ || promise_) return;
  // Some gradients are sums, some are partial sums, some are of this rank alone: none can be used.
  for (const at::Tensor& parameter : parameters_.tensors) parameter.mutable_grad() = at::Tensor();
}

void DdpState::on_backward_failure() {
  if (promise_) {
    promise_->note_failure();  // averages of other parameters go on until the promise is broken
  } else if (is_averaging_) {
    abandon_averages();
  }
}

void DdpState::abandon_averages() {
  is_averaging_ = false;
  // The reducer waits for the rest of that pass, and the state of the gradient hook belongs to dropped gradients.
  sync_->abandon();
  settings_.hook->load_memory({});
  must_hook_anew_ = true;  // done later, when it is known which parameters are trained
}

void DdpState::after_synchronised_backward() {
  is_averaging_ = false;
  sync_->gradients_are_final();
  // Not only before the next forward: a model may compute with a buffer before the use of a parameter shows that a
  // forward has begun.
  if (settings_.broadcast_buffers && (join_.is_active() || !passes_->keeps_graph())) {
    take_buffers(join_.first_training_rank(), [this] { return other_graphs_live(); });
  }
}

std::vector<bool> DdpState::parameters_in_this_backward() const {
  std::vector<bool> used;
  for (const intercept::GradientNode& node : nodes_) used.push_back(node.will_run());
  return used;
}

void DdpState::require_all_used(const std::vector<bool>& used) const {
  std::string names;
  std::size_t num_missing = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    if (++num_missing <= 8) names += (names.empty() ? "" : ", ") + parameters_.names[i];
  }
  if (num_missing == 0) return;
  if (num_missing > 8) names += ", and " + std::to_string(num_missing - 8) + " more";
  throw ConfigError("the loss does not depend on " + std::to_string(num_missing) + " of the " +
                    std::to_string(used.size()) + " parameters (rank " + std::to_string(comm_.world_rank()) +
                    "): " + names +
                    ". The other ranks would wait for their gradients: set find_unused_parameters(true), freeze them "
                    "with requires_grad_(false), or use them in the loss");
}

void DdpState::require_no_backward(const char* what) {
  raise_kept_error();
  passes_->find_failure();
  if (must_hook_anew_) {
    follow_frozen_parameters();
    renew_hooks();
  }
  if (passes_->phase() != Phase::kBackward) return;
  refuse_within_step(what, "A backward pass is under way");
}

void DdpState::require_between_steps(const char* what) {
  require_no_backward(what);
  if (passes_->phase() == Phase::kBetween) return;
  refuse_within_step(what,
                     "A forward begins when a parameter is first computed with outside NoGradGuard, in a log line too");
}

DdpStatistics DdpState::statistics() const {
  DdpStatistics statistics = statistics_;
  sync_->add_to(statistics);
  return statistics;
}

// ---- promised gradients ---------------------------------------------------------------------------------------------

void DdpState::promise_gradients() {
  const int rank = comm_.world_rank();
  shard::require_promise_possible(settings_.reproducible, promise_.has_value(), rank);
  if (settings_.static_graph) {
    shard::refuse_promise("with static_graph(true) one backward pass has all gradients", rank);
  }
  if (join_.is_active()) shard::refuse_promise("inside join() each backward pass is a step", rank);
  if (intercept::in_backward()) shard::refuse_promise_in_backward("promise_gradients()", rank);
  require_no_backward("promise_gradients()");
  if (passes_->phase() == Phase::kBetween) follow_frozen_parameters();
  if (!trains_the_same()) refuse_changed_flags();
  renew_hooks();
  promise_.emplace(all_parameters_, parameters_.tensors, rank);
  if (!write_listener_)
    write_listener_ = intercept::make_listener(weak_from_this(), [](DdpState& state, const intercept::Use& use) {
      if (use.writes() && state.promise_ && !state.is_completing_) state.promise_->note_write();
    });
  write_watch_ = intercept::Watch(all_parameters_.tensors, write_listener_);
  passes_->enter_promise();
}

void DdpState::complete_gradients(const std::vector<at::Tensor>& parameters) {
  average_promised(promise_for("complete()").complete(parameters), /*is_last=*/false);
}

void DdpState::finish_gradients() {
  if (promise_) average_promised(promise_for("finish()").complete_rest(), true);  // else they were, along a tree
  if (promise_) end_promise();
}

void DdpState::end_promise() {
  is_completing_ = false;
  write_watch_ = {};
  passes_->leave_promise();
  promise_.reset();
}

shard::GradientPromise& DdpState::promise_for(const char* what) {
  if (intercept::in_backward()) shard::refuse_promise_in_backward(what, comm_.world_rank());
  require_no_backward(what);
  if (!trains_the_same()) refuse_changed_flags();
  promise_->require_kept();
  renew_hooks();
  return *promise_;
}

void DdpState::average_promised(const std::vector<std::size_t>& indices, bool is_last) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    places[parameters_.tensors[i].unsafeGetTensorImpl()] = i;
  }
  std::vector<bool> used(parameters_.tensors.size(), true);
  std::vector<std::size_t> complete;
  for (const std::size_t index : indices) {
    complete.push_back(places.at(all_parameters_.tensors[index].unsafeGetTensorImpl()));
    used[complete.back()] = parameters_.tensors[complete.back()].grad().defined();
  }
  if (complete.empty() && !is_last) return;
  if (!may_lack_) require_all_used(used);
  is_completing_ = true;  // operators of the reducer look like writes to the parameters
  // In a backward pass, because the reducer queues a callback of autograd when its last bucket is full.
  intercept::run_backward([&] {
    if (!std::exchange(is_averaging_, true)) {
      sync_->backward_starts(std::vector<bool>(used.size(), true), num_passes_ == 0);
    }
    for (const std::size_t index : complete) sync_->gradient_came(index, /*averages=*/true);
    if (!is_last) return;
    ++statistics_.num_synchronised;
    sync_->backward_ends();
    intercept::at_end_of_backward([this] { after_synchronised_backward(); });
  });
  is_completing_ = false;
}

void DdpState::break_promise() noexcept {
  end_promise();
  try {
    if (is_averaging_) abandon_averages();
  } catch (const std::exception&) {
    must_hook_anew_ = true;  // the next call that uses the group reports the failure
  }
  for (const at::Tensor& parameter : parameters_.tensors) parameter.mutable_grad() = at::Tensor();
}

// ---- training on uneven inputs --------------------------------------------------------------------------------------

int DdpState::start_join(bool divide_by_initial_size) {
  require_between_steps("join()");
  if (settings_.reproducible) {
    throw ConfigError("reproducible mode needs the same number of micro-batches on every rank: it has no join()");
  }
  if (settings_.static_graph && num_passes_ == 0) {
    throw ConfigError("with static_graph(true) every rank must learn the graph: run one step before join()");
  }
  for (const auto& entry : model_->named_modules()) {
    if (!entry.value()->as<SyncBatchNormImpl>()) continue;
    throw ConfigError("the layer \"" + entry.key() +
                      "\" is a SyncBatchNorm, whose calls a rank without batches cannot answer: join() is refused");
  }
  if (join_.is_active()) throw ConfigError("this model is in a join() already; finish() it first");
  // Here, where all ranks take part: a rank without batches runs no forward.
  follow_frozen_parameters();
  renew_hooks();
  if (settings_.broadcast_buffers) take_buffers(0);
  return join_.start(divide_by_initial_size);
}

void DdpState::end_join(int number) noexcept {
  if (join_.end(number)) sync_->set_divisor(comm_.size());
}

void DdpState::finish_join() {
  if (!join_.is_active()) throw ConfigError("finish() was called twice, or after an error");
  require_between_steps("finish()");
  // The same collectives in the same order as in a backward pass of the other ranks.
  while (const int num_training = join_.count_training_ranks(comm_, false)) {
    sync_->set_divisor(join_.divisor(comm_, num_training));
    sync_->shadow_backward();
    if (settings_.broadcast_buffers) take_buffers(join_.first_training_rank());
  }
  const NamedTensors state = here(state_of(*model_));
  broadcast_all(comm_, state.tensors, join_.first_training_rank());
  end_join(join_.number());
}

}  // namespace tessera::data_parallel
