#include "data_parallel/ddp_state.h"

#include <tessera/core/error.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/intercept/random_draws.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include <tessera/shard/refuse_modules.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>
#include "data_parallel/reducer_sync.h"
#include "data_parallel/reproducible/tree_sync.h"

namespace tessera::data_parallel {
namespace {

/// What must be the same on every rank. A fault is part of it: one rank that refuses must not leave the others waiting.
std::vector<std::string> lines_of(const torch::nn::Module& model, const Communicator& comm, const DdpOptions& options) {
  std::vector<std::string> lines{"nothing to object"};
  try {
    resolve(options, comm);
    trained_parameters_of(model);
    refuse_devices(model);
    refuse_renormalising_modules(model);
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
  const auto tensors = described(state_of(model));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

[[noreturn]] void refuse_within_step(const char* what, const char* why) {
  throw ConfigError(std::string(what) + " must be called between steps, after backward and before the next forward. " +
                    why);
}

}  // namespace

class DdpState::FrozenListener : public intercept::Listener {
 public:
  explicit FrozenListener(std::weak_ptr<DdpState> state) : state_(std::move(state)) {}
  void on_use(const intercept::Use& use) override {
    if (const auto state = state_.lock()) state->on_frozen_use(use);
  }

 private:
  std::weak_ptr<DdpState> state_;
};

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
  shard::note_shared(state);
  return state;
}

DdpState::DdpState(std::shared_ptr<torch::nn::Module> model, const Communicator& comm, const DdpSettings& settings)
    : model_(std::move(model)),
      comm_(comm),
      settings_(settings),
      parameters_(trained_parameters_of(*model_)),
      all_parameters_(parameters_of(*model_)),
      may_lack_(settings.find_unused_parameters || settings.static_graph || settings.delay_all_reduce) {
  refuse_devices(*model_);
  refuse_renormalising_modules(*model_);
  if (settings_.reproducible) refuse_irreproducible_modules(*model_);
  if (!settings_.init_sync) return;
  broadcast_all(comm_, state_of(*model_).tensors, 0);
  buffer_sync_.note(buffers_of(*model_).tensors);
}

DdpState::~DdpState() { unhook_parameters(); }

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
  if (settings_.reproducible) {
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
  for (const at::Tensor& parameter : all_parameters_.tensors) {
    if (!parameter.requires_grad()) frozen.push_back(parameter);
  }
  frozen_watch_ = {};
  if (frozen.empty()) return;
  if (!frozen_listener_) frozen_listener_ = std::make_shared<FrozenListener>(weak_from_this());
  frozen_watch_ = intercept::Watch(frozen, frozen_listener_);
  frozen_watch_.pause();
}

bool DdpState::needs_hooks() const {
  if (must_hook_anew_) return true;
  // Somebody gave a parameter other memory, as torch::load does; autograd then forgets its hooks without a word.
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
  if (passes_->is_foreign(parameters_.tensors[index])) {
    throw ConfigError("a backward pass of a distributed model runs on another thread than distribute() (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): its gradients would be mixed with that one's. Other threads may evaluate, under NoGradGuard");
  }
  raise_kept_error();
  // Here, before any hook of the node is called: they are made anew.
  if (!passes_->is_in_pass()) passes_->find_failure();
  // Buckets are dense. An average of sparse gradients is not much less so.
  at::Tensor& gradient = parameters_.tensors[index].mutable_grad();
  if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  if (passes_->is_in_pass() || !needs_hooks()) return;
  if (!trains_the_same()) refuse_changed_flags();
  // Since the forward began, it seems, as Module::to does: to cast a parameter is to compute with it. The forward that
  // counts came later then, and went through the nodes of now.
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
  const auto num_trained = std::count_if(all_parameters_.tensors.begin(), all_parameters_.tensors.end(), is_trained);
  return num_trained == static_cast<std::ptrdiff_t>(parameters_.tensors.size()) &&
         std::all_of(parameters_.tensors.begin(), parameters_.tensors.end(), is_trained);
}

void DdpState::follow_frozen_parameters() {
  if (trains_the_same()) return;
  if (joining_ || promise_ || sync_->is_within_step()) {
    throw ConfigError(std::string("parameters were frozen or unfrozen ") +
                      (joining_ ? "inside join()" : "between the micro-batches of a step") + " (rank " +
                      std::to_string(comm_.world_rank()) + "): the gradients under way are those of others. Do it " +
                      (joining_ ? "outside of it" : "between steps"));
  }
  require_same_lines(comm_, described(all_parameters_));
  NamedTensors trained = trained_parameters_of(*model_);  // or nothing has changed
  unhook_parameters();
  parameters_ = std::move(trained);
  // What it remembers is by buckets, and these are others now.
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
  // An optimizer and an evaluation use parameters without a graph, a logger what is detached from it; and what backward
  // computes, again or for the first time, is no forward.
  if (!passes_->is_own_thread() || intercept::present_pass() != intercept::Pass::kForward) return false;
  // The second name is that of the record that detach() makes inside itself.
  if (use.operator_name() == "aten::detach" || use.operator_name() == "detach") return false;
  // One that is frozen is used as it is, by a layer in front whose buffers should be rank 0's.
  return use.tensor().requires_grad() ||
         std::any_of(all_parameters_.tensors.begin(), all_parameters_.tensors.end(),
                     [&](const at::Tensor& parameter) { return parameter.is_same(use.tensor()); });
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
  // In a join() they are taken after each backward: a rank without batches hears of no forward.
  if (settings_.broadcast_buffers && !took_buffers_ && !passes_->only_adds() && !joining_) {
    took_buffers_ = true;
    take_buffers(0);
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
  shard::require_uncut(*model_, "distribute()");
  return {{comm_, false}};
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
  // Promised ones have come when their owner says so.
  if (!promise_) sync_->gradient_came(index, passes_->averages());
}

void DdpState::on_nested_backward() {
  throw ConfigError("a backward pass began inside another one (rank " + std::to_string(comm_.world_rank()) +
                    "): that cannot be averaged. To recompute activations use tessera::checkpoint(), which needs no "
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
  if (joining_) {
    const int num_training = count_training_ranks(true);
    sync_->set_divisor(divide_by_initial_size_ ? comm_.size() : num_training);
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
  // Behind what the reducer has queued to finish its buckets.
  intercept::at_end_of_backward([weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->after_synchronised_backward();
  });
}

void DdpState::on_backward_dropped() noexcept {
  frozen_watch_.pause();
  watch_.resume();
  if (!is_averaging_ || promise_) return;
  // Some of them are sums, some parts of sums, some of this rank alone: of no use to anybody.
  for (const at::Tensor& parameter : parameters_.tensors) parameter.mutable_grad() = at::Tensor();
}

void DdpState::on_backward_failure() {
  if (promise_) {
    promise_->note_failure();  // what is under way of other parameters goes on until that is broken
  } else if (is_averaging_) {
    abandon_averages();
  }
}

void DdpState::abandon_averages() {
  is_averaging_ = false;
  // The reducer waits for the rest of that pass, and what hooks remember is of gradients that are gone.
  sync_->abandon();
  settings_.hook->load_memory({});
  must_hook_anew_ = true;  // by who knows that the same parameters are trained
}

void DdpState::after_synchronised_backward() {
  is_averaging_ = false;
  sync_->gradients_are_final();
  // Not only before the next forward: a model may compute with a buffer before any parameter tells that one begins.
  if (settings_.broadcast_buffers && (joining_ || !passes_->keeps_graph())) {
    take_buffers(first_training_rank_, [this] { return other_graphs_live(); });
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

}  // namespace tessera::data_parallel
