#include "data_parallel/reducer_sync.h"

#include <tessera/comm/memory_scope.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/shard/plain_alias.h>

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "data_parallel/flat_parameters.h"

namespace tessera::data_parallel {

HookAdapter::HookAdapter(std::shared_ptr<GradientHook> hook, Communicator comm)
    : hook_(std::move(hook)), comm_(std::move(comm)), divisor_(comm_.size()) {
  if (hook_->taken_.exchange(true)) {
    throw ConfigError("the gradient hook \"" + hook_->name() + "\" serves a model already (rank " +
                      std::to_string(comm_.world_rank()) +
                      "): make one for each model and, where ranks are threads, for each rank");
  }
}

HookAdapter::~HookAdapter() { hook_->taken_ = false; }

GradientHook::Finish HookAdapter::start(const c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  GradientBucket ours;
  const auto index = static_cast<std::size_t>(next_index_++);
  ours.index = index;
  ours.flat = bucket.getBuffer();
  ours.parameters = parameters_of(bucket, index);
  ours.gradients = gradients_in(ours.flat, ours.parameters);
  for (at::Tensor& gradient : ours.gradients) gradient = as_real(gradient);
  ours.divisor = is_divided_ ? 1 : divisor_;
  return hook_->start(ours, comm_);
}

std::vector<at::Tensor> HookAdapter::parameters_of(const c10d::GradBucket& bucket, std::size_t index) const {
  return index < parameters_.size() ? parameters_[index] : bucket.getParameters();
}

void HookAdapter::divide_the_rest(const c10d::GradBucket& bucket, std::size_t index) const {
  const at::NoGradGuard no_grad;
  const auto parameters = parameters_of(bucket, index);
  const auto gradients = gradients_in(bucket.getBuffer(), parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_divided_(parameters[i])) at::Tensor(gradients[i]).div_(divisor_);
  }
}

void HookAdapter::abandon() noexcept {
  for (const auto& [index, finish] : started_) {
    try {
      finish();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the result is not used anyway
    }
  }
  started_.clear();
}

c10::intrusive_ptr<c10::ivalue::Future> HookAdapter::runHook(c10d::GradBucket& bucket) {
  const std::int64_t index = next_index_;
  if (is_divided_) divide_the_rest(bucket, static_cast<std::size_t>(index));
  started_[index] = start(bucket);
  auto ready = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  ready->markCompleted(c10::IValue(index));
  return ready;
}

at::Tensor HookAdapter::parseHookResult(const c10::IValue& result) {
  const at::NoGradGuard no_grad;
  auto started = started_.extract(result.toInt());
  if (started.empty()) throw InternalError("a bucket of gradients was finished that had not been started");
  return started.mapped()();
}

namespace {

/// What the reducer sees of each parameter. Of one that holds a part, a leaf with the part's memory.
std::vector<at::Tensor> seen_by_reducer(std::vector<at::Tensor> parameters) {
  for (at::Tensor& parameter : parameters) {
    if (intercept::holds_part(parameter)) parameter = intercept::held_part(parameter).detach().requires_grad_();
  }
  return parameters;
}

}  // namespace

ReducerSync::ReducerSync(const NamedTensors& parameters, const Communicator& comm, const DdpSettings& settings)
    : model_parameters_(parameters.tensors),
      parameters_(seen_by_reducer(parameters.tensors)),
      comm_(comm),
      settings_(settings) {
  take_gradients();
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.names.size(); ++i) names[i] = parameters.names[i];
  // Note [Buckets in the group's memory]
  // The reducer allocates its buckets itself, here and when it rebuilds them in the order in which gradients arrived.
  const MemoryScope scope(comm_);
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters_, buckets_of(settings_.bucket_bytes), comm_.process_group(parameters_.front().device()),
      /*expect_sparse_gradients=*/std::vector<bool>(parameters_.size(), false), settings_.bucket_bytes,
      settings_.find_unused_parameters, settings_.gradient_as_bucket_view, std::move(names),
      std::min(settings_.first_bucket_bytes, settings_.bucket_bytes), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>());
  // The caller of gradient_came() decides when a gradient is complete.
  reducer_->remove_autograd_hooks();
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (settings_.static_graph) reducer_->set_static_graph();
  auto adapter = std::make_unique<HookAdapter>(settings_.hook, comm_);
  adapter_ = adapter.get();
  // Only if the reducer takes every gradient when it arrives, and leaves it in the bucket.
  divides_ = settings_.hook->takes_divided(comm_) && settings_.gradient_as_bucket_view && !settings_.static_graph &&
             !settings_.delay_all_reduce;
  if (divides_) {
    adapter_->expect_divided(
        [this](const at::Tensor& parameter) { return divided_.contains(parameter.unsafeGetTensorImpl()); });
  }
  reducer_->register_comm_hook(std::move(adapter));
  note_buckets();
}

void ReducerSync::note_buckets() {
  const auto buckets = reducer_->get_grad_buckets(/*return_zero_tensors=*/false);
  num_buckets_ = buckets.size();
  if (divides_) note_places(buckets);
  release_views();  // the reducer has made existing gradients views of its new buckets
}

void ReducerSync::note_places(const std::vector<c10d::GradBucket>& buckets) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_of;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_of[parameters_[i].unsafeGetTensorImpl()] = i;
  places_.assign(parameters_.size(), at::Tensor());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const auto parameters = adapter_->parameters_of(buckets[b], b);
    const auto gradients = gradients_in(buckets[b].getBuffer(), parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      places_[index_of.at(parameters[i].unsafeGetTensorImpl())] = gradients[i];
    }
  }
}

void ReducerSync::take_gradient(std::size_t index) {
  if (!intercept::holds_part(model_parameters_[index])) return;
  parameters_[index].mutable_grad() =
      intercept::gradient_part(model_parameters_[index], model_parameters_[index].grad());
}

void ReducerSync::take_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) take_gradient(i);
}

void ReducerSync::give_gradients_back() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!intercept::holds_part(model_parameters_[i])) continue;
    intercept::set_gradient_part(model_parameters_[i], parameters_[i].grad());
  }
}

void ReducerSync::gradient_came(std::size_t index, bool averages) {
  take_gradient(index);
  if (averages && divides_) divide(index);
  // In a pass that does not average, the reducer only notes which parameters are used.
  reducer_->autograd_hook(index);
}

void ReducerSync::divide(std::size_t index) {
  // The reducer copies a gradient into its bucket unless it lies there already. Dividing during that copy costs
  // nothing; dividing the sum later would take another pass over all gradients.
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.defined()) return;
  at::mul_out(places_[index], gradient, at::native::wrapped_scalar_tensor(1.0 / adapter_->divisor()));
  gradient = places_[index];
  divided_.insert(parameters_[index].unsafeGetTensorImpl());
}

ReducerSync::Indices ReducerSync::buckets_of(std::int64_t bucket_bytes) const {
  // Gradients arrive roughly in the reverse order of the parameters, so buckets are filled from the last parameter.
  const std::vector<at::Tensor> reversed(parameters_.rbegin(), parameters_.rend());
  std::vector<std::int64_t> indices(parameters_.size());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(indices.size() - 1 - i);
  const std::vector<std::size_t> limits{static_cast<std::size_t>(std::min(settings_.first_bucket_bytes, bucket_bytes)),
                                        static_cast<std::size_t>(bucket_bytes)};
  return std::get<0>(
      c10d::compute_bucket_assignment_by_size(reversed, limits, std::vector<bool>(parameters_.size(), false), indices));
}

// Note [Buckets that are given]
// The reducer rearranges its buckets once, after its first pass, in the order in which gradients arrived. That must not
// replace buckets that are given. So we first report all gradients to it as arrived and let it rearrange at once; then
// we set the given buckets. From then on, the parameters that it reports for its buckets are wrong.
void ReducerSync::rebuild_buckets() {
  const MemoryScope scope(comm_);
  if (!new_buckets_.empty()) reducer_->push_rebuilt_params_for_all_indices();
  bool changed = reducer_->rebuild_buckets();
  if (!new_buckets_.empty()) {
    arrange(std::exchange(new_buckets_, {}));
    changed = true;
  }
  if (changed) note_buckets();
}

void ReducerSync::arrange(const Indices& buckets) {
  std::vector<std::vector<at::Tensor>> parameters;
  for (const auto& bucket : buckets) {
    auto& of_bucket = parameters.emplace_back();
    for (const std::size_t index : bucket) of_bucket.push_back(parameters_[index]);
  }
  reducer_->initialize_buckets(buckets);
  adapter_->set_parameters(std::move(parameters));
}

void ReducerSync::backward_starts(const std::vector<bool>& used, bool is_first) {
  take_gradients();
  reducer_->prepare_for_forward();  // the reducer counts its passes in this call
  rebuild_buckets();
  adapter_->begin_pass();
  divided_.clear();
  if (settings_.delay_all_reduce) return;
  const bool search = settings_.find_unused_parameters && !settings_.static_graph;
  std::vector<at::Tensor> outputs;
  if (search) {
    // The reducer searches the graph for the parameters that some outputs reach. Autograd's engine has already reported
    // them in `used`, so an artificial output that leads directly to them makes the search one step long.
    std::vector<at::Tensor> reached;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) reached.push_back(parameters_[i]);
    }
    outputs.push_back(intercept::output_that_reaches(reached));
  }
  reducer_->prepare_for_backward(outputs);
  if (settings_.static_graph && is_first) {
    // In its first pass over a static graph the reducer only counts gradients; it reduces them all at once at the end.
    intercept::at_end_of_backward([reducer = reducer_] { reducer->delay_all_reduce(); });
  }
}

void ReducerSync::backward_ends() {
  if (!settings_.delay_all_reduce) return;
  take_gradients();
  reducer_->prepare_for_backward({});
  for (std::size_t i = 0; i < parameters_.size(); ++i) reducer_->autograd_hook(i);
}

void ReducerSync::gradients_are_final() {
  if (adapter_->num_started() != num_buckets_) {
    throw InternalError("backward ended with " + std::to_string(adapter_->num_started()) + " of " +
                        std::to_string(num_buckets_) + " buckets averaged (rank " + std::to_string(comm_.world_rank()) +
                        ")");
  }
  release_views();
}

void ReducerSync::release_views() {
  if (settings_.gradient_as_bucket_view) {
    for (const at::Tensor& parameter : parameters_) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && gradient.is_view()) gradient = plain_alias_of(gradient);
    }
  }
  give_gradients_back();
}

void ReducerSync::shadow_backward() {
  take_gradients();
  rebuild_buckets();
  adapter_->begin_pass();
  std::vector<GradientHook::Finish> finish;
  for (const auto& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/true)) {
    finish.push_back(adapter_->start(bucket));
  }
  if (settings_.find_unused_parameters && !settings_.static_graph) {
    std::vector<at::Tensor> used{at::zeros_like(reducer_->get_local_used_map_on_device())};
    comm_.process_group(parameters_.front().device())->allreduce(used)->wait();
  }
  for (const auto& wait : finish) wait();
  // As if gradients had arrived: after their first pass the other ranks rebuild their buckets, and this rank must too.
  reducer_->push_rebuilt_params_for_all_indices();
}

void ReducerSync::set_bucket_bytes(std::int64_t bucket_bytes) {
  if (bucket_bytes <= 0) {
    throw ConfigError("the size of buckets must be above 0, found " + std::to_string(bucket_bytes));
  }
  settings_.bucket_bytes = bucket_bytes;
  new_buckets_ = buckets_of(bucket_bytes);
  given_buckets_.clear();
}

GradientSync::Buckets ReducerSync::buckets() {
  take_gradients();
  rebuild_buckets();
  if (reducer_->should_rebuild_buckets()) return {};
  std::unordered_map<const c10::TensorImpl*, std::int64_t> index_of;
  for (const at::Tensor& parameter : parameters_) {
    index_of.emplace(parameter.unsafeGetTensorImpl(), static_cast<std::int64_t>(index_of.size()));
  }
  Buckets found;
  const auto buckets = reducer_->get_grad_buckets(/*return_zero_tensors=*/false);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    auto& indices = found.emplace_back();
    for (const at::Tensor& parameter : adapter_->parameters_of(buckets[b], b)) {
      indices.push_back(index_of.at(parameter.unsafeGetTensorImpl()));
    }
  }
  return found;
}

void ReducerSync::set_buckets(const Buckets& buckets) {
  Indices wanted;
  std::vector<int> times(parameters_.size(), 0);
  bool fits = true;
  for (const auto& bucket : buckets) {
    auto& indices = wanted.emplace_back();
    for (const std::int64_t index : bucket) {
      const bool exists = index >= 0 && static_cast<std::size_t>(index) < times.size();
      fits = fits && exists && ++times[static_cast<std::size_t>(index)] == 1;
      indices.push_back(static_cast<std::size_t>(index));
    }
    fits = fits && !bucket.empty();
  }
  fits = fits && std::find(times.begin(), times.end(), 0) == times.end();
  if (!fits) {
    throw ConfigError("the buckets do not hold each of the " + std::to_string(parameters_.size()) +
                      " trained parameters once (rank " + std::to_string(comm_.world_rank()) +
                      "): they are of another model");
  }
  new_buckets_ = std::move(wanted);
  given_buckets_ = buckets;
}

void ReducerSync::set_micro_batch(std::int64_t /*index*/) {
  throw ConfigError("set_micro_batch is for reproducible(true): other sums do not depend on the order");
}

void ReducerSync::add_to(DdpStatistics& statistics) const {
  const auto buckets = reducer_->get_grad_buckets(/*return_zero_tensors=*/false);
  statistics.num_buckets = num_buckets_;
  statistics.num_gradient_bytes = settings_.hook->num_bytes();
  statistics.buckets_are_zero_copy = std::all_of(
      buckets.begin(), buckets.end(), [this](const auto& bucket) { return comm_.is_zero_copy(bucket.getBuffer()); });
}

}  // namespace tessera::data_parallel
