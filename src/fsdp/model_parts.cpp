#include "fsdp/model_parts.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/large_blocks.h>
#include <tessera/shard/gathered_copy.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fsdp/gather_schedule.h"
#include "fsdp/rank_sources.h"

namespace tessera::fsdp {
namespace {

void cast_buffers(const std::vector<at::Tensor>& buffers, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.is_floating_point()) set_memory(buffer, buffer.to(dtype));
  }
}

void move_to(const c10::Device& device, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.device() != device) set_memory(tensor, tensor.detach().to(device));
}

/// An upper bound for the bytes of a flat parameter in `dtype`, with a gap after each tensor up to the next vector.
std::size_t flat_bytes(const UnitPlan& unit, c10::ScalarType dtype) {
  std::size_t num_bytes = 0;
  for (const at::Tensor& parameter : unit.parameters.tensors) {
    const auto size = dtype == c10::ScalarType::Undefined ? parameter.element_size()
                                                          : static_cast<std::int64_t>(c10::elementSize(dtype));
    num_bytes += static_cast<std::size_t>(c10::multiply_integers(intercept::held_sizes(parameter)) * size) + 128;
  }
  return num_bytes;
}

c10::Device device_of(const std::vector<UnitPlan>& units) {
  return units.empty() ? c10::Device(c10::kCPU) : units.front().device;
}

UnitPrecision precision_of(const std::string& unit, const FsdpOptions& options) {
  if (options.unit_precision()) return options.unit_precision()(unit);
  return {options.param_dtype(), options.reduce_dtype(), options.keep_low_precision_grads()};
}

}  // namespace

ModelParts::ModelParts(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, const FsdpOptions& options)
    : model_(std::move(model)), inner_(shard::find_shared(*model_)), ranks_(std::move(ranks)) {
  intercept::keep_large_blocks_apart();
  ModelPlan plan = plan_units(*model_, options);
  replicated_ = std::move(plan.replicated);
  for (const at::Tensor& parameter : replicated_.tensors) trains_replicated_.push_back(parameter.requires_grad());
  prepare_whole_tensors(options);
  make_units(plan.units, options);
}

void ModelParts::prepare_whole_tensors(const FsdpOptions& options) {
  std::vector<at::Tensor> whole = buffers().tensors;
  whole.insert(whole.end(), replicated_.tensors.begin(), replicated_.tensors.end());
  for (const at::Tensor& tensor : whole) {
    materialize(tensor);
    if (options.device()) move_to(*options.device(), tensor);
  }
  cast_buffers(buffers().tensors, options.buffer_dtype());
  if (!options.init_sync()) return;
  broadcast_all(ranks_.shards, whole, 0);
  if (ranks_.replicas) broadcast_all(*ranks_.replicas, whole, 0);
}

FlatSourcesSpec ModelParts::spec_of_sources(const std::vector<UnitPlan>& plans, const FsdpOptions& options,
                                            std::size_t buffer_bytes) const {
  FlatSourcesSpec spec{ranks_.shards, static_cast<int>(plans.size()), buffer_bytes, device_of(plans)};
  const auto num_ranks = static_cast<std::size_t>(ranks_.shards.size());
  std::size_t all = 0;
  for (const UnitPlan& unit : plans) {
    const std::size_t part = flat_bytes(unit, c10::ScalarType::Undefined) / num_ranks + 128;
    spec.part_bytes += part;
    spec.largest_part_bytes = std::max(spec.largest_part_bytes, part);
    all += flat_bytes(unit, precision_of(unit.name, options).param_dtype);
  }
  const std::size_t num_at_once = 1 + (options.limit_all_gathers() ? 1 : GatherSchedule::kFarAhead);
  spec.whole_bytes = buffer_bytes > 0 ? std::min(num_at_once, plans.size()) * buffer_bytes : all;
  return spec;
}

void ModelParts::make_units(const std::vector<UnitPlan>& plans, const FsdpOptions& options) {
  std::size_t largest = 0;
  std::size_t largest_gradient = 0;
  for (const UnitPlan& unit : plans) {
    const UnitPrecision precision = precision_of(unit.name, options);
    const bool differs = precision.reduce_dtype != c10::ScalarType::Undefined;
    largest = std::max(largest, flat_bytes(unit, precision.param_dtype));
    largest_gradient =
        std::max(largest_gradient, flat_bytes(unit, differs ? precision.reduce_dtype : precision.param_dtype));
  }
  const bool one_by_one =
      options.strategy() == ShardingStrategy::kFullShard || options.strategy() == ShardingStrategy::kHybridShard;
  const c10::Device device = device_of(plans);
  const FlatSourcesSpec spec = spec_of_sources(plans, options, one_by_one ? largest : 0);
  sources_ = options.flat_sources() ? options.flat_sources()(spec)
                                    : std::make_shared<RankSources>(spec, options.shared_copy());
  // Averages live long. In pages of their own they do not fragment the memory of short-lived buffers.
  const BufferPool flat = make_flat_buffers(ranks_.shards, largest_gradient, device);
  gradient_buffers_.emplace(GradientBuffers{flat, device.is_cpu() ? BufferPool(own_pages, 0) : flat});
  for (const UnitPlan& unit : plans) {
    units_.push_back(std::make_unique<Unit>(unit, static_cast<int>(units_.size()), ranks_,
                                            precision_of(unit.name, options), *sources_, gate_, *gradient_buffers_,
                                            options.init_sync()));
    // Note [Slices in reproducible mode]
    // Kernels round the last elements of a tensor, which do not fill a vector, differently from the others. A slice of
    // a parameter starts at a vector boundary, and ends at one or where the parameter ends, so each element is rounded
    // as in the whole parameter. In the flat parameter of a unit it would not be.
    if (options.use_orig_params() || options.reproducible()) units_.back()->train_slices();
    if (units_.back()->is_trained()) units_.back()->mark_gradients();
  }
}

FsdpStatistics ModelParts::byte_counts() const {
  FsdpStatistics statistics;
  for (const auto& unit : units_) {
    const auto num_bytes = static_cast<std::uint64_t>(unit->storage().num_bytes());
    statistics.largest_unit_bytes = std::max(statistics.largest_unit_bytes, num_bytes);
    statistics.full_bytes += num_bytes;
    statistics.shard_bytes += unit->shard().nbytes();
  }
  for (const at::Tensor& parameter : replicated_.tensors) {
    const std::uint64_t num_bytes = intercept::held_part(parameter).nbytes();
    statistics.full_bytes += num_bytes;
    statistics.shard_bytes += num_bytes;
  }
  return statistics;
}

NamedTensors ModelParts::buffers() const { return buffers_of(*model_); }

std::vector<int> ModelParts::all_units() const {
  std::vector<int> units(units_.size());
  std::iota(units.begin(), units.end(), 0);
  return units;
}

std::vector<int> ModelParts::units_of(const GatherOptions& options) const {
  if (!options.module()) return all_units();
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& parameter : options.module()->parameters()) wanted.insert(parameter.unsafeGetTensorImpl());
  std::vector<int> units;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& parameters = units_[i]->parameters();
    if (std::any_of(parameters.begin(), parameters.end(),
                    [&](const at::Tensor& parameter) { return wanted.contains(parameter.unsafeGetTensorImpl()); })) {
      units.push_back(static_cast<int>(i));
    }
  }
  return units;
}

std::vector<StateSlice> ModelParts::state_slices() const {
  std::vector<StateSlice> state;
  // What is written to parts that are whole goes to the slices when gather() ends.
  const bool has_whole_parts = inner_ && inner_->is_held();
  for (const auto& unit : units_) {
    unit->require_own_memory();
    if (unit->is_written() || has_whole_parts) {
      throw ConfigError("the slices of this model are asked for while gather() holds it to be written to (rank " +
                        std::to_string(ranks_.shards.world_rank()) + "): they get what was written when that ends");
    }
    for (const TensorSlice& slice : unit->slices()) state.push_back({slice});
  }
  const auto add_whole = [&](const NamedTensors& tensors, bool are_buffers) {
    for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
      state.push_back(shard::whole_state(tensors.names[i], tensors.tensors[i], are_buffers));
    }
  };
  add_whole(replicated_, false);
  for (StateSlice& one : slices_elsewhere()) state.push_back(std::move(one));
  add_whole(buffers(), true);
  return state;
}

/// Every rank lists all parameters, those that a pipeline has put on other ranks with nothing.
std::vector<StateSlice> ModelParts::slices_elsewhere() const {
  std::vector<StateSlice> found;
  if (!inner_) return found;
  std::unordered_set<std::string> elsewhere;
  for (const TrainedTensor& one : trained_elsewhere()) elsewhere.insert(one.name);
  if (elsewhere.empty()) return found;
  for (StateSlice& one : inner_->state_slices()) {
    if (!one.is_buffer && elsewhere.contains(one.name)) found.push_back(std::move(one));
  }
  return found;
}

std::vector<TrainedTensor> ModelParts::trained_elsewhere() const {
  std::vector<TrainedTensor> found;
  if (!inner_) return found;
  for (TrainedTensor& one : inner_->trained()) {
    if (intercept::is_elsewhere(one.tensor)) found.push_back(std::move(one));
  }
  return found;
}

void ModelParts::begin_write(const at::Tensor& held) const {
  for (const auto& unit : units_) {
    if (unit->storage().holds(held)) unit->begin_write();
  }
}

std::vector<ModelAxis> ModelParts::axes() const {
  if (!inner_) require_uncut_parameters("ParallelModel::axes()");
  std::vector<ModelAxis> axes{{ranks_.shards, true}};
  if (ranks_.replicas) axes.push_back({*ranks_.replicas, false});
  if (!inner_) return axes;
  for (const ModelAxis& axis : inner_->axes()) axes.push_back(axis);
  return axes;
}

std::vector<TrainedTensor> ModelParts::trained() const {
  constexpr std::size_t kShards = 0;  // in axes()
  constexpr std::size_t kReplicas = 1;
  const auto over_replicas = ranks_.replicas ? std::vector{kReplicas} : std::vector<std::size_t>{};
  const auto over_all = ranks_.replicas ? std::vector{kShards, kReplicas} : std::vector{kShards};
  // Along the axes of tensor parallelism every rank has a parameter that is not cut.
  std::unordered_map<const c10::TensorImpl*, std::vector<std::size_t>> of_inner;
  for (TrainedTensor& one : inner_ ? inner_->trained() : std::vector<TrainedTensor>()) {
    of_inner[one.tensor.unsafeGetTensorImpl()] = std::move(one.replicated_over);
  }
  const std::size_t num_outer = over_all.size();
  const auto and_inner = [&](std::vector<std::size_t> over, const at::Tensor& parameter) {
    for (const std::size_t axis : of_inner[parameter.unsafeGetTensorImpl()]) over.push_back(num_outer + axis);
    return over;
  };
  std::vector<TrainedTensor> trained;
  for (const auto& unit : units_) {
    if (!unit->is_trained()) continue;
    const auto& slices = unit->trained_slices();
    for (std::size_t i = 0; i < slices.size(); ++i) {
      // A program that leaves out frozen parameters checks requires_grad() of the slice.
      slices[i].values.set_requires_grad(unit->parameters()[i].requires_grad());
      trained.push_back({slices[i].name,
                         slices[i].values,
                         {{slices[i].name, slices[i].slice, {0, slices[i].values.numel()}}},
                         and_inner(over_replicas, unit->parameters()[i])});
    }
    if (!slices.empty()) continue;
    auto& of_unit = trained.emplace_back(
        TrainedTensor{unit->name(), unit->shard(), {}, and_inner(over_replicas, unit->parameters().front())});
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      of_unit.parts.push_back({unit->layout().items()[i].name, unit->slice_of(i), unit->place_in_shard(i)});
    }
  }
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    const at::Tensor& tensor = replicated_.tensors[i];
    if (!trains_replicated_[i]) continue;
    const std::string& name = replicated_.names[i];
    trained.push_back({name,
                       tensor,
                       {{name, global_slice(tensor), {0, c10::multiply_integers(intercept::held_sizes(tensor))}}},
                       and_inner(over_all, tensor)});
  }
  for (TrainedTensor& one : trained_elsewhere()) {
    one.replicated_over = over_all;  // nothing, on all of them
    trained.push_back(std::move(one));
  }
  return trained;
}

void ModelParts::require_uncut(const std::string& what, const std::string& name, const Slice& slice) const {
  if (slice.is_whole()) return;
  throw ConfigError(what + " knows only the ranks that share this model (rank " +
                    std::to_string(ranks_.shards.world_rank()) + "), and of " + name + " those have " + slice.text() +
                    ": it was cut before fully_shard()");
}

void ModelParts::require_uncut_parameters(const std::string& what) const {
  for (const auto& unit : units_) {
    for (const FlatLayout::Item& item : unit->layout().items()) require_uncut(what, item.name, item.slice);
  }
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    require_uncut(what, replicated_.names[i], global_slice(replicated_.tensors[i]));
  }
}

void ModelParts::require_uncut(const std::string& what) const {
  require_uncut_parameters(what);
  const NamedTensors held = buffers();
  for (std::size_t i = 0; i < held.tensors.size(); ++i) {
    require_uncut(what, held.names[i], global_slice(held.tensors[i]));
  }
}

void ModelParts::require_replicated_unchanged() const {
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    if (trains_replicated_[i] || !replicated_.tensors[i].requires_grad()) continue;
    throw ConfigError(refusal_of_unfrozen(replicated_.names[i], ranks_.shards.world_rank()));
  }
}

}  // namespace tessera::fsdp
