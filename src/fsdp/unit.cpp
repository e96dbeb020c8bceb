#include "fsdp/unit.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/plain_alias.h>
#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>

#include <exception>
#include <utility>

namespace tessera::fsdp {
namespace {

// Vectorised kernels give other bits for a piece that ends within a vector. So tensors and parts begin on vector
// boundaries.
constexpr std::int64_t kVectorBytes = 64;

std::int64_t elements_of_vector(at::ScalarType dtype) {
  return kVectorBytes / static_cast<std::int64_t>(c10::elementSize(dtype));
}

at::ScalarType either(at::ScalarType wanted, at::ScalarType otherwise) {
  return wanted == at::ScalarType::Undefined ? otherwise : wanted;
}

FlatLayout layout_of(const UnitPlan& plan, std::int64_t alignment) {
  FlatLayout layout(alignment);
  for (std::size_t i = 0; i < plan.parameters.tensors.size(); ++i) {
    layout.add(plan.parameters.names[i], global_slice(plan.parameters.tensors[i]));
  }
  return layout;
}

/// The tensors with the bytes of these parameters.
std::vector<at::Tensor> held_by(std::vector<at::Tensor> parameters) {
  for (at::Tensor& parameter : parameters) {
    if (intercept::holds_part(parameter)) parameter = intercept::held_part(parameter);
  }
  return parameters;
}

std::string label_of(const std::string& name) { return name.empty() ? "the model itself" : "\"" + name + "\""; }

/// "first" (first.weight, first.bias)
std::string label_with_parameters(const UnitPlan& plan) {
  constexpr std::size_t kMost = 12;
  const auto& names = plan.parameters.names;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return label_of(plan.name) + " (" + text + ")";
}

std::string why_sharded(const UnitPlan& plan) {
  return "the parameters of " + label_with_parameters(plan) +
         " are in shards at this point. Operators of LibTorch gather them by themselves; code that takes data_ptr() or "
         "item accessors, or runs on another thread, needs a `const auto whole = sharded.gather();` around it";
}

std::string where_gradients_are(const std::string& name) {
  return "the gradients of " + label_of(name) +
         " are in shards. Build the optimizer on sharded.parameters(), after fully_shard(), and clip with "
         "tessera::clip_grad_norm(sharded, ...)";
}

void add_to_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parameter.grad().defined()) {
    parameter.grad().add_(gradient);
  } else {
    parameter.mutable_grad() = gradient;
  }
}

}  // namespace

void UnitRanks::require_same(const std::function<void(const Communicator&)>& compare,
                             const std::function<void(const std::string& difference)>& tell) const {
  std::exception_ptr difference;
  try {
    compare(shards);
  } catch (const ConfigError& error) {
    difference = std::current_exception();
    tell(error.what());
  }
  if (replicas) compare(*replicas);
  if (difference) std::rethrow_exception(difference);
}

std::string refusal_of_other_memory(const std::string& parameter, int world_rank) {
  return "the parameter " + parameter + " was given other memory after fully_shard() (rank " +
         std::to_string(world_rank) +
         "): torch::load, Module::to and set_data() do that. Load and convert the model before it is sharded";
}

std::string refusal_of_unfrozen(const std::string& parameter, int world_rank) {
  return "the parameter " + parameter + " is to be trained since fully_shard() (rank " + std::to_string(world_rank) +
         "), which found it frozen: nothing averages its gradient, and no optimizer on sharded.parameters() has it. "
         "Unfreeze it before";
}

Unit::Unit(const UnitPlan& plan, int number, UnitRanks ranks, const UnitPrecision& precision, FlatSources& sources,
           std::shared_ptr<ThreadGate> gate, GradientBuffers gradients, bool init_sync)
    : name_(plan.name),
      why_sharded_(why_sharded(plan)),
      ranks_(std::move(ranks)),
      gradient_buffers_(std::move(gradients)),
      is_trained_(plan.parameters.tensors.front().requires_grad()),
      device_(plan.device),
      dtype_(plan.parameters.tensors.front().scalar_type()),
      compute_dtype_(either(precision.param_dtype, dtype_)),
      gradient_dtype_(either(precision.reduce_dtype, compute_dtype_)),
      keeps_gradient_dtype_(precision.keep_low_precision_grads),
      parameters_(plan.parameters.tensors),
      held_(held_by(parameters_)),
      layout_(layout_of(plan, elements_of_vector(compute_dtype_))),
      partition_(layout_.num_elements(), ranks_.shards.size(), elements_of_vector(compute_dtype_)),
      mine_(partition_.of(ranks_.shards.rank())),
      storage_(layout_.num_elements(), compute_dtype_, device_, why_sharded_),
      stream_uses_(device_),
      gradient_mark_(layout_.num_elements(), compute_dtype_, device_, where_gradients_are(name_)),
      source_(sources.make({number, label_of(name_), partition_, compute_dtype_, dtype_, device_})),
      gate_(std::move(gate)),
      gradients_(layout_.num_elements(), gradient_dtype_, device_, where_gradients_are(name_)) {
  const at::NoGradGuard no_grad;
  adopt_values(init_sync);
}

void Unit::adopt_values(bool init_sync) {
  const at::Tensor flat = empty_flat();
  for (std::size_t i = 0; i < parameters_.size(); ++i) copy_values(view_of(flat, i), held_[i]);
  if (init_sync) ranks_.broadcast(flat);
  shard_ = source_->make_shard();
  set_values(flat);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& item = layout_.items()[i];
    set_memory(held_[i], storage_.view(item.range.start, item.shape()));
  }
  if (is_whole()) give_whole();
  shard_.set_requires_grad(is_trained_);
}

at::Tensor Unit::view_of(const at::Tensor& flat, std::size_t index) const {
  const auto& item = layout_.items()[index];
  return flat.narrow(0, item.range.start, item.range.size).view(item.shape());
}

void Unit::clear_gaps(const at::Tensor& flat) const {
  std::int64_t end = 0;
  for (const auto& item : layout_.items()) {
    if (item.range.start > end) flat.narrow(0, end, item.range.start - end).zero_();
    end = item.range.end();
  }
}

// ---- parameters -----------------------------------------------------------------------------------------------------

void Unit::start_gather() {
  if (state_ != UnitState::kSharded) return;
  const at::NoGradGuard no_grad;
  if (is_whole()) {
    give_whole();
    return;
  }
  state_ = UnitState::kGathering;
  source_->start(shard_.detach());
}

void Unit::finish_gather() {
  if (state_ != UnitState::kGathering) return;
  // If waiting throws, the unit is in shards as before.
  state_ = UnitState::kSharded;
  const ThreadGate::Change change(*gate_);
  source_->finish(storage_);
  stream_uses_.note();
  state_ = UnitState::kGathered;
}

void Unit::release(bool keep_bytes) {
  if (is_whole()) return;
  finish_gather();
  if (state_ != UnitState::kGathered) return;
  state_ = UnitState::kSharded;
  seal_.reset();
  const ThreadGate::Change change(*gate_);
  stream_uses_.join();
  source_->release(storage_, keep_bytes, why_sharded_);
}

void Unit::give_whole() {
  const ThreadGate::Change change(*gate_);
  storage_.give(bytes_of(shard_.detach()));
  state_ = UnitState::kGathered;
}

void Unit::begin_write() {
  if (is_whole() || is_written_) return;
  if (compute_dtype_ != dtype_) {
    throw ConfigError("the parameters of " + label_of(name_) + " are to be written to as " +
                      c10::toString(compute_dtype_) + " (rank " + std::to_string(ranks_.shards.world_rank()) +
                      "): they are computed with in that type, and trained in " + c10::toString(dtype_) +
                      ", whose last bits that would cost. Use sharded.load_full_state_dict(), or write into the slices "
                      "of sharded_state_dict()");
  }
  const ThreadGate::Change change(*gate_);
  source_->own(storage_);
  is_written_ = true;
  seal_.reset();
}

void Unit::end_write() {
  if (!std::exchange(is_written_, false)) return;
  const at::NoGradGuard no_grad;
  source_->before_write();
  shard_.detach().copy_(my_part());
  source_->after_write();
  release(/*keep_bytes=*/false);
}

void Unit::seal() {
  // An older seal stays: inside gather() a forward may begin after the program has written something.
  if (is_whole() || is_written_ || seal_) return;
  seal_ = fingerprint_of(my_part());
}

void Unit::require_sealed() {
  const auto seal = std::exchange(seal_, std::nullopt);
  if (!seal || state_ != UnitState::kGathered || fingerprint_of(my_part()) == *seal) return;
  throw ConfigError("the parameters of " + label_of(name_) + " were written to while they were whole (rank " +
                    std::to_string(ranks_.shards.world_rank()) +
                    "), by a pointer or in another way that no operator shows: such writes may be lost. "
                    "Write inside `const auto whole = sharded.gather(GatherOptions().write_back(true));`");
}

at::Tensor Unit::whole_values() const {
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::empty({layout_.num_elements()}, at::TensorOptions(dtype_).device(device_));
  if (is_written_) {
    ranks_.shards.all_gather_into(flat, my_part(), partition_.sizes());
    return flat;
  }
  source_->before_read();
  ranks_.shards.all_gather_into(flat, shard_.detach(), partition_.sizes());
  source_->after_read();
  return flat;
}

at::Tensor Unit::empty_flat() const {
  const at::Tensor flat = at::empty({layout_.num_elements()}, at::TensorOptions(dtype_).device(device_));
  clear_gaps(flat);
  return flat;
}

void Unit::set_values(const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  shard_.detach().copy_(flat.narrow(0, mine_.start, mine_.size));
  source_->after_write();
}

bool Unit::is_held(std::size_t index) const {
  return !intercept::holds_part(parameters_[index]) || intercept::held_part(parameters_[index]).is_same(held_[index]);
}

void Unit::require_own_memory() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (storage_.holds(held_[i]) && is_held(i)) continue;
    throw ConfigError(refusal_of_other_memory(layout_.items()[i].name, ranks_.shards.world_rank()));
  }
}

void Unit::require_none_frozen() const {
  if (!is_trained_ || !trained_slices_.empty()) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].requires_grad()) continue;
    throw ConfigError("the parameter " + layout_.items()[i].name + " was frozen after fully_shard() (rank " +
                      std::to_string(ranks_.shards.world_rank()) +
                      "): the optimizer knows its unit as one vector, and would go on to change it. Freeze it before, "
                      "or shard with use_orig_params(true)");
  }
}

void Unit::require_unchanged() const {
  require_own_memory();
  require_none_frozen();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_trained_ || !parameters_[i].requires_grad()) continue;
    throw ConfigError(refusal_of_unfrozen(layout_.items()[i].name, ranks_.shards.world_rank()));
  }
}

void Unit::refuse(const std::string& why) {
  explain(why);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = is_held(i) ? held_[i] : parameters_[i];
    if (storage_.holds(parameter)) continue;
    // In the type that it has now; else the operator would throw because of the type.
    const HollowStorage nothing(parameter.numel(), parameter.scalar_type(), parameter.device(), why);
    parameter.set_data(nothing.view(0, parameter.sizes().vec()));
  }
}

void Unit::explain(const std::string& why) {
  try {
    finish_gather();  // else memory would be reused in which parts still arrive
  } catch (const std::exception&) {
    state_ = UnitState::kSharded;  // something went wrong already, and `why` says what
  }
  const ThreadGate::Change change(*gate_);
  is_written_ = false;
  seal_.reset();
  stream_uses_.join();
  if (state_ == UnitState::kGathered && !is_whole()) source_->release(storage_, /*keep_bytes=*/false, why);
  if (storage_.has_bytes()) storage_.take(why);
  storage_.explain(why);
  state_ = UnitState::kSharded;
}

Range Unit::place_in_shard(std::size_t index) const {
  const Range held = layout_.items()[index].range.meet(mine_);
  return held.size == 0 ? Range{} : Range{held.start - mine_.start, held.size};
}

Slice Unit::slice_of(std::size_t index) const {
  const FlatLayout::Item& item = layout_.items()[index];
  const Range held = item.range.meet(mine_);
  return item.slice.part(held.size == 0 ? Range{} : Range{held.start - item.range.start, held.size});
}

std::vector<TensorSlice> Unit::slices() const {
  const at::NoGradGuard no_grad;
  std::vector<TensorSlice> slices;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Range place = place_in_shard(i);
    slices.push_back(
        {layout_.items()[i].name, slice_of(i), plain_alias_of(shard_.detach().narrow(0, place.start, place.size))});
  }
  return slices;
}

void Unit::train_slices() {
  if (source_->keeps_gradient()) {
    throw ConfigError("the gradients of " + label_of(name_) +
                      " are kept in a file for the whole unit, and are asked for by parameter (rank " +
                      std::to_string(ranks_.shards.world_rank()) +
                      "): keep gradients in memory, or leave out use_orig_params and reproducible");
  }
  trained_slices_ = slices();
  for (TensorSlice& slice : trained_slices_) slice.values.set_requires_grad(is_trained_);
  had_.assign(parameters_.size(), false);
}

std::vector<at::Tensor> Unit::trained() const {
  if (!is_trained_) return {};
  if (trained_slices_.empty()) return {shard_};
  std::vector<at::Tensor> tensors;
  for (const TensorSlice& slice : trained_slices_) tensors.push_back(slice.values);
  return tensors;
}

// ---- gradients ------------------------------------------------------------------------------------------------------

void Unit::take_gradient(std::size_t index, const at::Tensor& whole_gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = intercept::gradient_part(parameters_[index], whole_gradient);
  if (!gradients_.has_bytes()) {
    gradients_.give(gradient_buffers_.flat.lend(static_cast<std::size_t>(gradients_.num_bytes())));
    clear_gaps(gradients_.flat());
    came_.assign(parameters_.size(), false);
  }
  at::Tensor place = view_of(gradients_.flat(), index);
  if (came_[index]) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
  came_[index] = true;
}

at::Tensor Unit::memory_for_average() {
  // The program may use it on any stream: record_stream() works on memory of the device's own allocator.
  if (!device_.is_cpu()) return at::empty({mine_.size}, at::TensorOptions(gradient_dtype_).device(device_));
  const auto is_free = [&] {
    // The only reference to both the tensor and its storage: so no view of it is held either.
    return kept_.defined() && kept_.use_count() == 1 && kept_.storage().use_count() == 1;
  };
  if (!is_free()) {
    const auto num_bytes = static_cast<std::size_t>(mine_.size) * c10::elementSize(gradient_dtype_);
    kept_ = tensor_on(gradient_buffers_.averages.lend(num_bytes), mine_.size, gradient_dtype_);
  }
  return kept_;
}

void Unit::start_reduce() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!came_[i]) view_of(gradients_.flat(), i).zero_();
  }
  if (partition_.num_parts() == 1) {
    reduced_ = memory_for_average();
    reduced_.copy_(gradients_.flat());
    return;
  }
  reduced_ = memory_for_average();
  reduce_ = ranks_.shards.reduce_scatter_into_async(reduced_, gradients_.flat(), ReduceOp::kAvg, partition_.sizes());
}

void Unit::finish_reduce() {
  if (!reduced_.defined()) return;
  const at::NoGradGuard no_grad;
  if (partition_.num_parts() > 1) reduce_.wait();
  reduce_ = Work();
  gradients_.take(where_gradients_are(name_));
  if (ranks_.replicas) ranks_.replicas->all_reduce(reduced_, ReduceOp::kAvg);
  if (!keeps_gradient_dtype_) reduced_ = reduced_.to(dtype_);
  if (trained_slices_.empty()) {
    take_average(reduced_);
  } else if (averaged_.defined()) {
    averaged_.add_(reduced_);
  } else {
    // Slices get their gradients in hand_out_gradients(), once it is known which parameters had one on some rank.
    averaged_ = reduced_;
  }
  reduced_ = at::Tensor();
  for (std::size_t i = 0; i < had_.size(); ++i) had_[i] = had_[i] || came_[i];
}

void Unit::take_average(const at::Tensor& average) {
  if (source_->keeps_gradient()) {
    shard_.mutable_grad() = source_->keep_gradient(shard_, average);
  } else {
    add_to_gradient(shard_, average);
  }
}

void Unit::give_gradient(const at::Tensor& average) {
  const at::NoGradGuard no_grad;
  if (trained_slices_.empty()) {
    take_average(average);
    return;
  }
  averaged_ = average;
  hand_out_gradients(std::vector<float>(parameters_.size(), 1).data());
}

void Unit::drop_gradients() {
  if (reduced_.defined() && partition_.num_parts() > 1) reduce_.wait();
  reduce_ = Work();
  reduced_ = at::Tensor();
  if (gradients_.has_bytes()) gradients_.take(where_gradients_are(name_));
  averaged_ = at::Tensor();
  had_.assign(had_.size(), false);
}

// A program may clear the gradients of some slices, so each slice is added to by itself.
void Unit::hand_out_gradients(const float* had) {
  if (!averaged_.defined()) return;
  for (std::size_t i = 0; i < trained_slices_.size(); ++i) {
    if (had[i] == 0) continue;
    const Range place = place_in_shard(i);
    add_to_gradient(trained_slices_[i].values, plain_alias_of(averaged_.narrow(0, place.start, place.size)));
  }
  averaged_ = at::Tensor();
  had_.assign(had_.size(), false);
}

void Unit::mark_gradients() {
  is_marked_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& item = layout_.items()[i];
    const at::Tensor mark = gradient_mark_.view(item.range.start, held_[i].sizes());
    if (intercept::holds_part(parameters_[i])) {
      intercept::set_gradient_part(parameters_[i], mark);
    } else {
      parameters_[i].mutable_grad() = mark;
    }
  }
}

void Unit::require_none_cleared() const {
  if (!is_marked_) return;
  const auto has_gradient = [this](std::size_t i) {
    return (trained_slices_.empty() ? shard_ : trained_slices_[i].values).grad().defined();
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad().defined() || !has_gradient(i)) continue;
    throw ConfigError(
        "the gradients of " + label_of(name_) + " were cleared by model->zero_grad() (rank " +
        std::to_string(ranks_.shards.world_rank()) +
        "), and the optimizer is about to use them: it found them in the shards, where that call does not "
        "reach before the next backward. Call optimizer.zero_grad()");
  }
}

void Unit::drop_cleared_gradients() {
  if (!std::exchange(is_marked_, false)) return;
  const at::NoGradGuard no_grad;
  const auto is_cleared = [this](std::size_t i) { return !parameters_[i].grad().defined(); };
  for (std::size_t i = 0; i < trained_slices_.size(); ++i) {
    if (is_cleared(i)) trained_slices_[i].values.mutable_grad() = at::Tensor();
  }
  std::size_t num_cleared = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_cleared(i)) continue;
    ++num_cleared;
    if (gradients_.has_bytes()) came_[i] = false;
    const Range place = place_in_shard(i);
    if (shard_.grad().defined() && place.size > 0) shard_.grad().narrow(0, place.start, place.size).zero_();
  }
  // All were cleared: make the gradient undefined, since an optimizer skips tensors without gradient.
  if (num_cleared < parameters_.size()) return;
  shard_.mutable_grad() = at::Tensor();
  if (gradients_.has_bytes()) gradients_.take(where_gradients_are(name_));
}

}  // namespace tessera::fsdp
