#include <tessera/checkpoint/held_slice.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/optim/schedule.h>
#include <tessera/shard/trained_memory.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "train/state/optimizer_state.h"
#include "train/state/saved_names.h"
#include "train/state/state_part.h"

namespace tessera {

using train::OptimizerState;
using train::SavedNames;
using train::StatePart;
using train::ValuePart;

struct TrainingState::Parts {
  explicit Parts(std::optional<Communicator> ranks);

  std::optional<Communicator> comm;
  std::optional<ParallelModel> model;
  torch::optim::Optimizer* optimizer = nullptr;
  // By name, so in the same order on all ranks. The schedule is restored last, since it sets learning rates.
  std::map<std::string, std::unique_ptr<StatePart>> others;
  std::unique_ptr<StatePart> schedule;

  int rank() const { return comm ? comm->rank() : 0; }
  int num_ranks() const { return comm ? comm->size() : 1; }
  void add(const std::string& name, std::unique_ptr<StatePart> part);
  std::vector<StatePart*> all_others() const;
  void fill(const StateSource& source, const std::vector<HeldSlice>& slices) const;
};

TrainingState::Parts::Parts(std::optional<Communicator> ranks) : comm(std::move(ranks)) {
  add("random", train::random_part(rank()));
  add("random of the accelerator", train::accelerator_random_part(rank()));
}

void TrainingState::Parts::add(const std::string& name, std::unique_ptr<StatePart> part) {
  if (!others.emplace(name, std::move(part)).second) {
    throw ConfigError("a TrainingState was given \"" + name + "\" twice: a checkpoint has room for one");
  }
}

std::vector<StatePart*> TrainingState::Parts::all_others() const {
  std::vector<StatePart*> list;
  for (const auto& [name, part] : others) list.push_back(part.get());
  if (schedule) list.push_back(schedule.get());
  return list;
}

TrainingState::TrainingState() : parts_(std::make_unique<Parts>(std::nullopt)) {}

TrainingState::TrainingState(const Ranks& ranks) : parts_(std::make_unique<Parts>(ranks.comm())) {}

TrainingState::~TrainingState() = default;

// ---- parts ----------------------------------------------------------------------------------------------------------

TrainingState& TrainingState::model(const ParallelModel& model) {
  if (parts_->model) throw ConfigError("a TrainingState was given two models: a checkpoint has room for one");
  parts_->model = model;
  // Only DDP has these: buckets of gradients, and hooks that remember.
  if (const auto distributed = as_distributed(model)) {
    parts_->add("ddp", train::buckets_part(*distributed, parts_->rank(), parts_->num_ranks()));
  }
  return *this;
}

TrainingState& TrainingState::optimizer(torch::optim::Optimizer& optimizer) {
  if (!parts_->model)
    throw ConfigError("TrainingState::optimizer() was called before model(): parameters have no names");
  if (parts_->optimizer) throw ConfigError("a TrainingState was given two optimizers: a checkpoint has room for one");
  parts_->optimizer = &optimizer;
  const OptimizerState checked(optimizer,
                               train::tensors_of(*parts_->model).parts);  // so that an optimizer is refused at once
  return *this;
}

TrainingState& TrainingState::schedule(LrSchedule& schedule) {
  if (parts_->schedule) throw ConfigError("a TrainingState was given two schedules: a checkpoint has room for one");
  parts_->schedule = std::make_unique<ValuePart<std::int64_t>>(
      "schedule/step", [&schedule] { return schedule.step(); },
      [&schedule](std::int64_t step) { schedule.set_step(step); });
  return *this;
}

TrainingState& TrainingState::scaler(GradScaler& scaler) {
  const auto set = [&scaler](const auto& change) {
    GradScalerState state = scaler.state();
    change(state);
    scaler.set_state(state);
  };
  parts_->add("scaler/scale", std::make_unique<ValuePart<double>>(
                                  "scaler/scale", [&scaler] { return scaler.state().scale; },
                                  [set](double scale) { set([&](GradScalerState& state) { state.scale = scale; }); }));
  parts_->add("scaler/growth_tracker",
              std::make_unique<ValuePart<std::int64_t>>(
                  "scaler/growth_tracker", [&scaler] { return scaler.state().growth_tracker; },
                  [set](std::int64_t count) { set([&](GradScalerState& state) { state.growth_tracker = count; }); }));
  return *this;
}

TrainingState& TrainingState::sampler(Sampler& sampler) {
  return this->sampler([&sampler] { return sampler.state(); },
                       [&sampler](const SamplerState& state) { sampler.restore(state); });
}

TrainingState& TrainingState::sampler(std::function<SamplerState()> get, std::function<void(const SamplerState&)> set) {
  parts_->add("sampler", train::sampler_part(std::move(get), std::move(set)));
  return *this;
}

namespace {

template <class Value>
std::unique_ptr<StatePart> own_value(const std::string& name, Value& value) {
  return std::make_unique<ValuePart<Value>>(
      "value/" + name, [&value] { return value; }, [&value](const Value& saved) { value = saved; });
}

}  // namespace

TrainingState& TrainingState::value(const std::string& name, bool& value) {
  parts_->add("value/" + name, own_value(name, value));
  return *this;
}
TrainingState& TrainingState::value(const std::string& name, std::int64_t& value) {
  parts_->add("value/" + name, own_value(name, value));
  return *this;
}
TrainingState& TrainingState::value(const std::string& name, double& value) {
  parts_->add("value/" + name, own_value(name, value));
  return *this;
}
TrainingState& TrainingState::value(const std::string& name, std::string& value) {
  parts_->add("value/" + name, own_value(name, value));
  return *this;
}

// ---- saving and restoring -------------------------------------------------------------------------------------------

RankState TrainingState::capture() const {
  RankState state;
  if (parts_->model) {
    const train::ModelTensors tensors = train::tensors_of(*parts_->model);
    state.slices = tensors.parameters;
    // Forwards have changed buffers differently on each rank; the next forward begins with those of rank 0.
    if (parts_->rank() == 0) state.slices.insert(state.slices.end(), tensors.buffers.begin(), tensors.buffers.end());
    if (parts_->optimizer) OptimizerState(*parts_->optimizer, tensors.parts).capture(state);
  }
  for (const StatePart* part : parts_->all_others()) part->capture(state);
  for (HeldSlice& slice : state.slices) slice.values = shard::readable(slice.values).contiguous();
  return state;
}

RestoreReport TrainingState::restore(const StateSource& source, const RestoreOptions& options) {
  SavedNames names(source.manifest, options);
  train::ModelTensors tensors;
  std::optional<OptimizerState> optimizer;
  if (parts_->model) tensors = train::tensors_of(*parts_->model);
  for (const auto& [name, shape] : tensors.shapes) {
    names.take_tensor(train::kModelGroup, names.saved_name(name), shape);
  }
  const auto others = options.weights_only() ? std::vector<StatePart*>() : parts_->all_others();
  if (parts_->optimizer && !options.weights_only()) {
    optimizer.emplace(*parts_->optimizer, tensors.parts).plan(names);
  }
  for (StatePart* part : others) part->plan(names);
  // Another way to share the model does not need the buckets, and the saved state may have none.
  names.pass_over(train::kTrainingGroup, train::kBucketsPrefix);
  names.require_complete();

  RestoreReport report{source.manifest.step, names.missing(), names.unexpected(), {}};
  if (parts_->model) parts_->model->before_write();
  std::vector<HeldSlice> slices;
  const auto append = [&](const std::vector<HeldSlice>& more) {
    slices.insert(slices.end(), more.begin(), more.end());
  };
  append(tensors.parameters);
  append(tensors.buffers);
  for (HeldSlice& slice : slices) slice.name = names.saved_name(slice.name);
  std::erase_if(slices, [&](const HeldSlice& slice) { return !names.find_tensor(slice.group, slice.name); });
  if (optimizer) append(optimizer->apply(names));
  for (StatePart* part : others) append(part->prepare());
  parts_->fill(source, slices);
  if (parts_->model) parts_->model->after_write();
  for (StatePart* part : others) part->finish(report.notes);
  return report;
}

RestoreReport TrainingState::restore(const SavedStep& step, const RestoreOptions& options) {
  const auto fill = [&step](const std::vector<HeldSlice>& slices) { read_slices(step, slices); };
  return restore({step.manifest(), fill}, options);
}

/// One rank that cannot read must not leave the others waiting in the next step.
void TrainingState::Parts::fill(const StateSource& source, const std::vector<HeldSlice>& slices) const {
  std::exception_ptr error;
  std::string why;
  try {
    source.fill(slices);
  } catch (const std::exception& fault) {
    error = std::current_exception();
    why = fault.what();
  }
  const auto all = comm ? all_gather_texts(*comm, why) : std::vector<std::string>{why};
  if (error) std::rethrow_exception(error);
  const std::string report = first_report(all);
  if (report.empty()) return;
  throw StorageError("step " + std::to_string(source.manifest.step) + " could not be read everywhere: " + report +
                     "; what was read so far must not be trained (rank " + std::to_string(rank()) + ")");
}

}  // namespace tessera
